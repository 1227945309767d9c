"""Secrets that are replaced while nodes run."""

import logging

import pytest

from callboard import Actor, Rights, errors, handler
from callboard.proxies.events import LinkDown
from callboard.proxies.rights.permissions import LinkAccess
from tests.polling import eventually


class Echo(Actor):
    @handler
    def text(self, message: str) -> str:
        return message


def linked(make_node, one, two):
    """Two nodes; the second one dials."""
    shop, other = make_node("shop", **one), make_node("other", **two)
    shop.listen()
    shop.register("echo", shop.spawn(Echo))
    other.connect(shop.address)
    eventually(shop.links)
    return shop, other


def proven(node):
    return [wire.link.secret for wire in node._routes.wires.values()]


def test_a_secret_is_replaced_in_three_steps_and_only_the_last_ends_links(make_node):
    shop, other = linked(make_node, {"secret": "old"}, {"secret": "old"})
    ended = []
    with shop.subscribed(lambda event: isinstance(event, LinkDown) and ended.append(event)):
        for secrets in (["old", "new"], ["new", "old"]):
            assert [node.change_secrets(secrets) for node in (shop, other)] == [0, 0]
            assert other.remote_actor(shop.address + "/echo").ask("hi").result(10) == "hi"
        assert not ended
        assert proven(shop) == [b"old"]
        assert shop.change_secrets("new") == 1
        eventually(lambda: proven(shop) == [b"new"] == proven(other))
    assert "the proven secret is no longer accepted" in str(ended)
    assert other.change_secrets("new") == 0
    assert other.remote_actor(shop.address + "/echo").ask("hi").result(10) == "hi"


def test_what_is_proved_first_is_the_first_and_what_is_accepted_is_any(make_node):
    shop = make_node("shop", secret=["old", "new"])
    shop.listen()
    for secrets, expected in ((["new", "old"], b"new"), (["x", "old"], b"old")):
        other = make_node(secret=secrets)
        other.connect(shop.address)
        eventually(lambda other=other: other.node_id in shop._routes.wires)
        assert shop._routes.wires[other.node_id].link.secret == expected


def test_whoever_proves_a_removed_secret_is_refused(make_node):
    shop, other = linked(make_node, {"secret": ["old", "new"]}, {"secret": "old"})
    assert shop.change_secrets(["new"]) == 1
    eventually(lambda: not other.links())
    with pytest.raises(errors.LinkError, match="the shared secrets differ"):
        make_node(secret="old").connect(shop.address)
    make_node(secret="new").connect(shop.address)
    other.change_secrets("new")
    eventually(other.links)


def test_the_side_that_dialed_ends_the_link_too(make_node):
    shop, other = linked(make_node, {"secret": ["old", "new"]}, {"secret": "old"})
    assert other.change_secrets("new") == 1
    eventually(lambda: proven(shop) == [b"new"])


def test_ports_with_secrets_of_their_own_keep_them_and_workers_their_links(make_node):
    shop = make_node("shop", secret="old")
    port = shop.listen(secret="guests")
    guest = make_node("guest", secret="guests")
    guest.connect(f"basp://127.0.0.1:{port}")
    eventually(shop.links)

    assert shop.change_secrets("new") == 0
    assert shop.links()
    make_node(secret="guests").connect(f"basp://127.0.0.1:{port}")


def test_a_name_keeps_its_rights_under_another_secret(make_node):
    permissions = {"till": Rights(names=["echo"])}
    shop = make_node("shop", secrets={"till": "old"}, permissions=permissions)
    shop.listen()
    shop.register("echo", shop.spawn(Echo))
    till = make_node("till", secret="old")
    till.connect(shop.address)
    eventually(shop.links)
    assert shop.change_secrets(secrets={"till": ["old", "new"]}) == 0
    till.change_secrets("new")
    eventually(lambda: proven(shop) == [b"new"])
    assert shop._routes.wires[till.node_id].link.peer.standing.identity == "till"


@pytest.mark.parametrize(
    ("given", "error"),
    [
        (((), None), ValueError),
        (("", None), ValueError),
        ((["a", "a"], None), ValueError),
        ((None, {"a": []}), TypeError),
        ((None, {"a": ["x", 5]}), TypeError),
        ((None, ["a"]), TypeError),
    ],
)
def test_secrets_that_cannot_be_taken_leave_the_old_ones(make_node, given, error):
    shop, other = linked(make_node, {"secret": "old"}, {"secret": "old"})
    with pytest.raises(error):
        shop.change_secrets(*given)
    assert other.remote_actor(shop.address + "/echo").ask("hi").result(10) == "hi"
    make_node(secret="old").connect(shop.address)


def test_secrets_are_in_no_text_about_what_guards_a_link(make_node):
    access = LinkAccess.of("swordfish", {"till": "tunafish"}, None)
    node = make_node(secret="swordfish")
    config = node._connector.config(node._connector.options.access)
    for shown in (access, config, node._connector.options, node):
        assert "swordfish" not in repr(shown)
        assert "tunafish" not in repr(shown)


def test_a_link_that_is_not_sealed_is_told_in_the_log(make_node, caplog, monkeypatch):
    """The flag that a node of release 0.1 does not set is hidden here."""
    monkeypatch.setattr("callboard.basp.handshake._BOUND", 0)
    shop = make_node("shop", secret="s", allow_unsealed=True)
    shop.listen()
    caplog.set_level(logging.WARNING, "callboard.links")
    make_node("other", secret="s", allow_unsealed=True).connect(shop.address)
    eventually(shop.links)

    assert [link.guard for link in shop.links()] == ["unsealed"]
    assert caplog.text.count("is not sealed, as allow_unsealed permits") == 2
