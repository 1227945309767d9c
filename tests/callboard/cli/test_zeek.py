"""`callboard zeek connect` against a simulated Zeek."""

import threading

import pytest

from callboard import Endpoint
from callboard.cli import main
from tests.callboard.zeek.doors.clusters import Manager
from tests.callboard.zeek.doors.clusters import Zeek as Node
from tests.callboard.zeek.doors.zeeks import Zeek
from tests.polling import eventually


def test_connect_prints_messages_of_zeek(capsys):
    with Zeek() as zeek:

        def say():
            eventually(zeek.filters)
            zeek.say("/zeek/other", 1)
            zeek.say("/zeek/notice", ["ü", 2])

        saying = threading.Thread(target=say)
        saying.start()
        url = zeek.url
        assert (
            main(["zeek", "connect", url, "--topic", "/zeek/n", "--count", "1", "--json"]) == 0
        )
        saying.join()

    said = capsys.readouterr()
    assert '{"topic": "/zeek/notice", "data": ["ü", 2]}' in said.out
    assert "7.0.0" in said.err


def test_a_missing_peer_and_a_wrong_address_are_reported_in_one_line(capsys):
    assert main(["zeek", "connect", "ws://127.0.0.1:1", "--timeout", "0.3"]) == 1
    assert main(["zeek", "connect", "http://127.0.0.1:1"]) == 2
    lines = capsys.readouterr().err.splitlines()

    assert len(lines) == 2
    assert "nothing answers" in lines[0]
    assert "ws://HOST" in lines[1]


@pytest.fixture
def peer():
    with Endpoint() as made:
        yield made


@pytest.mark.parametrize("wire", ["zeek-2", "zeek-1.4"])
def test_peer_prints_messages_of_a_broker(peer, capsys, wire):
    port = peer.listen("127.0.0.1", 0, wire=wire)

    def say():
        eventually(peer.peers)
        eventually(lambda: peer.peers()[0].status.name == "Peered")
        peer.await_filter_entry("/zeek/n", 10)
        peer.publish("/zeek/other", 1)
        peer.publish("/zeek/notice", ["ü", 2])

    saying = threading.Thread(target=say)
    saying.start()
    where = f"127.0.0.1:{port}"
    arguments = ["--wire", wire, "--topic", "/zeek/n", "--count", "1", "--json"]
    assert main(["zeek", "peer", where, *arguments]) == 0
    saying.join()

    said = capsys.readouterr()
    assert '{"topic": "/zeek/notice", "data": ["ü", 2]}' in said.out
    assert f'"wire": "{wire}"' in said.err


@pytest.mark.slow
def test_a_missing_broker_a_wrong_wire_and_a_wrong_address_are_reported_in_one_line(capsys):
    assert main(["zeek", "peer", "127.0.0.1:1", "--timeout", "0.1"]) == 1
    assert main(["zeek", "peer", "127.0.0.1:1", "--wire", "zeek-9"]) == 2
    assert main(["zeek", "peer", "127.0.0.1"]) == 2
    assert main(["zeek", "peer", "127.0.0.1:1", "--certificates", "/nowhere"]) == 1
    lines = capsys.readouterr().err.splitlines()

    assert len(lines) == 4
    assert ["--disable-ssl" in lines[0], "zeek-2" in lines[1]] == [True, True]


def test_connect_prints_messages_of_a_cluster_over_zeromq(capsys):
    with Manager() as manager, Node(manager) as node:

        def say():
            node.await_subscription("zeek.cluster.w")
            node.publish("zeek.other", 1)
            node.publish("zeek.cluster.worker", ["ü", 2])

        saying = threading.Thread(target=say)
        saying.start()
        ports = [each.rpartition(":")[2] for each in (manager.xpub, manager.xsub)]
        url = f"zmq://127.0.0.1:{ports[0]}/{ports[1]}"
        words = ["--topic", "zeek.cluster.w", "--count", "1", "--json", "--member", "printer"]
        assert main(["zeek", "connect", url, *words]) == 0
        saying.join()

    said = capsys.readouterr()
    assert '{"topic": "zeek.cluster.worker", "data": ["ü", 2]}' in said.out
    assert "zeromq_printer_" in said.err


def test_a_missing_manager_a_wrong_address_and_foreign_options_are_reported_in_one_line(
    capsys, tmp_path
):
    assert main(["zeek", "connect", "zmq://127.0.0.1:1", "--timeout", "0.3"]) == 1
    assert main(["zeek", "connect", "zmq:/127.0.0.1:1"]) == 2
    assert main(["zeek", "connect", "zmq://127.0.0.1:1", "--name", "x"]) == 2
    assert main(["zeek", "connect", "ws://127.0.0.1:1", "--member", "x"]) == 2
    missing = str(tmp_path / "missing")
    assert main(["zeek", "connect", "zmq://127.0.0.1:1", "--curve", missing]) == 2
    lines = capsys.readouterr().err.splitlines()

    assert len(lines) == 5
    for line, told in zip(
        lines, ["no answer", "zmq://HOST", "ws://", "zmq://", "missing"], strict=True
    ):
        assert told in line
