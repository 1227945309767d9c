"""Who is let in as whom: named secrets, names in certificates, permissions."""

from dataclasses import replace

import pytest

from callboard import Node, errors
from callboard.proxies.environment import real_surroundings
from callboard.proxies.events import LinkRefused
from callboard.proxies.rights.permissions import LinkAccess, Permissions
from callboard.proxies.rights.rights import Rights
from tests.polling import eventually

MEMBER = Rights.member()
LEAF = Rights(names=["till"])


def identity_of(shop, node):
    return shop._routes.wires[node.node_id].link.peer.standing.identity


def test_the_first_entry_that_matches_holds():
    table = Permissions((("sensor-1", LEAF), ("sensor-*", MEMBER), ("", Rights())))

    assert table.admit("sensor-1", ()).rights is LEAF
    assert table.admit("sensor-2", ("sensor-1",)).rights is MEMBER  # the secret has a name
    assert table.admit("", ("other", "sensor-1")).identity == "sensor-1"
    assert table.admit("", ()).identity == ""
    assert table.admit("", ("other",)) is None
    assert table.admit("other", ("sensor-1",)) is None


@pytest.mark.parametrize(
    ("secrets", "error"),
    [
        ({"a": ""}, ValueError),
        ({"a": "s", "b": b"s"}, ValueError),
        ({"a": "node's"}, ValueError),
        ({"": "s"}, ValueError),
        ({"a\x1b": "s"}, ValueError),
        ({"a": 5}, TypeError),
        (["a"], TypeError),
        ({1: "s"}, TypeError),
        ({str(n): str(n) for n in range(64)}, ValueError),
    ],
)
def test_secrets_that_tell_nobody_apart_are_refused(secrets, error):
    with pytest.raises(error):
        Node(secret="node's", secrets=secrets)


@pytest.mark.parametrize("permissions", [{"a": None}, {"a": Rights}, [("a", LEAF)], {1: LEAF}])
def test_permissions_hold_rights_by_patterns(permissions):
    with pytest.raises(TypeError, match="permissions"):
        LinkAccess.of(None, None, permissions)


@pytest.mark.parametrize("place", ["127.0.0.1", "unix"])
@pytest.mark.parametrize("shop_dials", [False, True])
def test_a_peer_is_who_it_proves_to_be_whichever_side_dials(
    make_node, tmp_path, place, shop_dials
):
    secrets = {"sensor": "s1", "member": "s2"}
    shop = make_node("shop", secrets=secrets, permissions={"member": MEMBER, "s*": MEMBER})
    where = f"unix:{tmp_path}/{{}}" if place == "unix" else place
    for secret, name in (("s2", "member"), ("s1", "sensor")):
        other = make_node(name, secret=secret)
        dialer, acceptor = (shop, other) if shop_dials else (other, shop)
        acceptor.listen(where.format(name))
        address = acceptor.address
        if place == "unix" and not shop_dials:
            address = f"basp+unix:{tmp_path}/{name}:"
        dialer.connect(address)

        eventually(lambda other=other: other.node_id in shop._routes.wires)
        assert identity_of(shop, other) == name


def test_who_has_several_secrets_finds_the_right_one_and_remembers_it(make_node):
    told = []
    shop = make_node("shop", secrets={"c": "3"}, permissions={"c": MEMBER})
    shop.listen()
    other = make_node("other", secret="1", secrets={"b": "2", "x": "3", "y": "4"})
    with other.subscribed(told.append):
        assert other.connect(shop.address) == shop.node_id

    assert not [event for event in told if isinstance(event, LinkRefused)]
    assert list(other._connector.dialer._keys.values()) == [2]
    other.disconnect(shop.node_id, 0.0)
    eventually(lambda: other.node_id in shop._routes.wires)
    assert list(other._connector.dialer._keys.values()) == [2]


def test_who_has_no_right_secret_is_told_after_the_last(make_node):
    shop = make_node("shop", secrets={"c": "3"})
    shop.listen()
    other = make_node("other", secrets={"b": "2", "x": "5", "y": "4"})

    with pytest.raises(errors.LinkError, match="the shared secrets differ"):
        other.connect(shop.address)


@pytest.mark.parametrize("shop_dials", [False, True])
def test_an_identity_without_an_entry_is_refused_and_both_sides_read_why(make_node, shop_dials):
    told = []
    secrets = {"sensor": "s1", "member": "s2"}
    shop = make_node("shop", secrets=secrets, permissions={"member": MEMBER})
    other = make_node("other", secret="s1")
    dialer, acceptor = (shop, other) if shop_dials else (other, shop)
    acceptor.listen()
    with acceptor.subscribed(told.append), dialer.subscribed(told.append):
        with pytest.raises(errors.LinkError, match="permi"):
            dialer.connect(acceptor.address)
        eventually(lambda: len([e for e in told if isinstance(e, LinkRefused)]) >= 2)

    reasons = " ".join(event.reason for event in told if isinstance(event, LinkRefused))
    assert "some for this node" in reasons
    assert ("proven to be 'sensor'" in reasons) or shop_dials
    assert not shop.links()


def test_an_unnamed_secret_beside_permissions_is_nobody(make_node):
    shop = make_node("shop", secret="s", permissions={"?*": MEMBER})
    shop.listen()
    with pytest.raises(errors.LinkError):
        make_node(secret="s").connect(shop.address)
    port = shop.listen(secret="t", permissions={"*": MEMBER})
    make_node(secret="t").connect(f"basp://127.0.0.1:{port}")


@pytest.mark.parametrize("shop_dials", [False, True])
def test_the_names_in_a_certificate_are_an_identity(make_node, papers, shop_dials):
    tls = papers.tls()
    shop = make_node("shop", tls=tls, permissions={"no": LEAF, "localhost": MEMBER, "*": LEAF})
    other = make_node("other", tls=tls)
    dialer, acceptor = (shop, other) if shop_dials else (other, shop)
    acceptor.listen()
    dialer.connect(acceptor.address)

    eventually(lambda: other.node_id in shop._routes.wires)
    assert identity_of(shop, other) == "localhost"


def test_a_public_port_with_named_secrets_is_guarded(make_node):
    assert make_node().listen("0.0.0.0", secrets={"a": "s"}) > 0


def test_a_leaf_gets_no_id_that_is_another_nodes(make_node):
    permissions = {"sensor": LEAF, "member": MEMBER}
    shop = make_node("shop", secrets={"sensor": "s1", "member": "s2"}, permissions=permissions)
    shop.listen()
    office, far = make_node("office", secret="s2"), make_node("far", secret="s2")
    far.listen()
    office.connect(shop.address)
    office.connect(far.address)
    eventually(lambda: len(shop.nodes()) == 2)
    shop.disconnect(office.node_id, 0.0)  # also in the moment in which it is not linked

    for victim in (office, far):
        thief = make_node("thief", secret="s1", surroundings=with_id(victim.node_id))
        with pytest.raises(errors.LinkError):
            thief.connect(shop.address)
    assert "id of another node" in shop._broker.objection(
        office.node_id, Permissions((("*", LEAF),)).admit("sensor", ())
    )
    eventually(lambda: len(shop.nodes()) == 2)
    assert not shop.overlay.leaves


def with_id(node_id):
    return replace(real_surroundings(), make_node_id=lambda: node_id)
