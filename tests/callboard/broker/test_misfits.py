"""Peers that cannot be: who dials and who listens are told why, and nobody waits for ever."""

import logging

import pytest

from callboard import Node, errors, events
from callboard.broker import BrokerOptions, Configuration, Endpoint
from callboard.cli import main
from tests.polling import eventually


def plain(secret=None):
    options = BrokerOptions()
    options.disable_ssl = True
    return Endpoint(Configuration(options), secret=secret)


def told(caplog):
    return " ".join(record.getMessage() for record in caplog.records)


@pytest.mark.parametrize("retry", [0.0, 10.0])
def test_a_port_that_speaks_plainly_is_told_on_both_sides(caplog, retry):
    seen = []
    with Node("shop") as shop, shop.subscribed(seen.append), Endpoint() as endpoint:
        port = int(shop.listen())

        assert endpoint.peer("127.0.0.1", port, retry) is False

        eventually(lambda: any(isinstance(event, events.LinkRefused) for event in seen))
        eventually(lambda: "it does not speak TLS" in told(caplog))
        eventually(
            lambda: "the peer speaks TLS, but this port speaks plain BASP" in told(caplog)
        )
        assert {record.levelno for record in caplog.records} == {logging.WARNING}


@pytest.mark.parametrize("retry", [0.0, 10.0])
def test_another_secret_is_told_on_both_sides(caplog, retry):
    with plain("s1") as one, plain("s2") as other:
        port = one.listen("127.0.0.1", 0)

        assert other.peer("127.0.0.1", port, retry) is False

        eventually(lambda: "has another shared secret than this node" in told(caplog))
        eventually(lambda: "the shared secrets differ" in told(caplog))


@pytest.mark.slow
def test_who_speaks_plainly_to_a_port_with_tls_is_told_on_both_sides(caplog):
    with Endpoint() as endpoint, Node("office") as office:
        port = endpoint.listen("127.0.0.1", 0)

        with pytest.raises(errors.NodeUnreachable, match="it may want TLS"):
            office.connect(f"basp://127.0.0.1:{port}")

        eventually(lambda: "does it speak TLS?" in told(caplog))


def test_a_dial_that_could_not_be_goes_on_and_links_when_the_other_end_is_changed():
    with Node("first") as first:
        port = int(first.listen())
        with Endpoint() as endpoint:
            assert endpoint.peer("127.0.0.1", port, 0.1) is False
            first.close()
            with Endpoint() as other:
                eventually(lambda: _listens(other, port))
                assert endpoint.await_peer(other.node_id(), 20)


def _listens(endpoint, port):
    try:
        return endpoint.listen("127.0.0.1", port) == port
    except OSError:
        return False


@pytest.mark.slow
def test_commands_reach_plain_nodes_and_endpoints_with_their_own_encryption(capsys):
    with Node("shop") as shop, Endpoint() as endpoint:
        shop.listen()
        port = endpoint.listen("127.0.0.1", 0)

        for address, name in ((shop.address, "shop"), (f"basp://127.0.0.1:{port}", "node-")):
            assert main(["node", "ps", address, "--json"]) == 0
            assert f'"name": "{name}' in capsys.readouterr().out
            assert main(["topic", "pub", "/x", "1", "--peer", address, "--timeout", "0"]) in (
                0,
                1,
            )
            assert "TLS" not in capsys.readouterr().err
