"""Who gets a link through a port, and what a node finds at its own."""

import pytest

from callboard import Node
from callboard.actors.errors import NodeUnreachable, NotRegistered
from callboard.basp.errors import AuthenticationFailed
from callboard.proxies.errors import LinkError, PublicAddress
from tests.proxies.cast import Echo, eventually, recorded


@pytest.mark.parametrize(
    ("listens", "dials", "fits"),
    [
        ("s3cret", "s3cret", True),
        (b"bytes", "bytes", True),
        ("s3cret", "wrong", False),
        ("s3cret", None, False),
        (None, "s3cret", False),
        (None, None, True),
    ],
)
def test_only_nodes_with_the_same_secret_link(make_node, listens, dials, fits):
    a, b = make_node(secret=listens), make_node(secret=dials)
    a.listen()

    if fits:
        assert b.connect(a.address) == a.node_id
    else:
        with pytest.raises(NodeUnreachable, match=a.address):
            b.connect(a.address)
        assert a.links() == b.links() == []


def test_both_sides_learn_that_the_secrets_differ_and_nothing_of_them(make_node, caplog):
    a, b = make_node(secret="the-right-one"), make_node(secret="the-wrong-one")
    a.listen()

    with recorded(a) as seen_by_a, recorded(b) as seen_by_b:
        with pytest.raises(
            LinkError, match="the shared secrets differ; set the same"
        ) as caught:
            b.connect(a.address)
        eventually(lambda: seen_by_a and seen_by_b)

    assert isinstance(caught.value, NodeUnreachable)
    assert isinstance(caught.value.__cause__, AuthenticationFailed)
    (told_a,), (told_b,) = seen_by_a, seen_by_b
    assert "another shared secret than this node; set the same one on both" in told_a.reason
    assert "the shared secrets differ" in told_b.reason
    assert told_b.address == a.address
    everything = caplog.text + str(caught.value) + told_a.reason + told_b.reason
    assert "the-right" not in everything
    assert "the-wrong" not in everything


def test_many_wrong_secrets_are_told_once_a_second(make_node):
    a, b = make_node(secret="right"), make_node(secret="wrong")
    a.listen()

    with recorded(a) as events:
        for _ in range(5):
            with pytest.raises(LinkError):
                b.connect(a.address)

    assert 1 <= len(events) < 5


@pytest.mark.slow
def test_a_seed_with_another_secret_is_logged_once_however_often_it_is_dialed(
    make_node, caplog
):
    a = make_node("a", secret="right")
    a.listen()

    b = make_node("b", secret="wrong", join=[a.address])

    with recorded(b) as events:
        eventually(lambda: len(events) > 1)
    told = [line for line in caplog.messages if line.startswith("no link with " + a.address)]
    assert len(told) == 1
    assert "the shared secrets differ" in told[0]


def test_an_address_where_nobody_listens_is_no_link_error(make_node):
    a, b = make_node(), make_node()
    a.listen()
    address = a.address
    a.close()

    with pytest.raises(NodeUnreachable) as caught:
        b.connect(address)
    assert not isinstance(caught.value, LinkError)


def test_the_own_address_is_not_dialed(make_node):
    a = make_node()
    echo, other = a.spawn(Echo), a.spawn(Echo)
    a.register("other", other)
    port = a.listen(publish=echo)
    second = a.listen()

    assert a.remote_actor(a.address) == echo
    assert a.remote_actor(f"basp://localhost:{port}") == echo
    for each in (port, second):
        assert a.remote_actor(f"basp://127.0.0.1:{each}/other") == other
    with pytest.raises(NotRegistered, match="no actor is published"):
        a.remote_actor(f"basp://127.0.0.1:{second}")
    with pytest.raises(NotRegistered, match="'nobody'"):
        a.remote_actor(f"{a.address}/nobody")


def test_a_port_on_all_addresses_is_our_own_through_loopback(make_node):
    a = make_node()
    echo = a.spawn(Echo)
    port = a.listen("0.0.0.0", publish=echo, insecure=True)

    assert a.remote_actor(f"basp://127.0.0.1:{port}") == echo
    assert a.remote_actor(f"basp://0.0.0.0:{port}") == echo


def test_an_empty_secret_is_refused():
    with pytest.raises(ValueError, match="empty"):
        Node(secret="")


@pytest.mark.parametrize("address", ["0.0.0.0", "::", ""])
def test_a_public_address_needs_a_secret_or_consent(make_node, address):
    with pytest.raises(PublicAddress, match="secret"):
        make_node().listen(address)


def test_a_public_address_with_a_secret_or_consent_listens(make_node):
    assert make_node().listen("0.0.0.0", secret="s3cret") > 0
    assert make_node().listen("0.0.0.0", insecure=True) > 0
