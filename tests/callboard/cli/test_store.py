"""`callboard store` against a master in this process."""

import json
import threading

import pytest

from callboard import Node, broker
from callboard.cli import main
from callboard.store import attach_master
from callboard.topics.hub import Hub


@pytest.fixture
def master():
    with Node() as node, attach_master(Hub.of(node), "things") as store:
        node.listen("127.0.0.1", 0)
        yield store, node.address


def test_a_value_can_be_put_listed_and_read(master, capsys):
    store, address = master
    assert main(["store", "put", "things", "colour", '["red", 1]', "--peer", address]) == 0
    assert store.get("colour") == ("red", 1)

    assert main(["store", "get", "things", "colour", "--peer", address, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == ["red", 1]
    assert main(["store", "keys", "things", "--peer", address]) == 0
    assert capsys.readouterr().out == "colour\n"


def test_a_missing_key_is_reported_in_one_line_with_exit_code_1(master, capsys):
    _, address = master
    assert main(["store", "get", "things", "missing", "--peer", address]) == 1

    assert "has no key 'missing'; list its keys with" in capsys.readouterr().err


def test_a_store_without_a_master_is_reported_in_one_line_with_exit_code_1(master, capsys):
    _, address = master
    command = ["store", "keys", "others", "--peer", address, "--timeout", "0.3"]
    assert main(command) == 1

    assert "no master of the store 'others' was found" in capsys.readouterr().err


@pytest.mark.slow
def test_an_endpoint_is_reached_with_the_encryption_that_it_has(capsys):
    with broker.Endpoint() as endpoint, endpoint.attach_master("things") as store:
        address = f"127.0.0.1:{endpoint.listen('127.0.0.1', 0)}"
        assert main(["store", "put", "things", "k", "5", "--peer", address]) == 0
        assert store.get("k") == 5
        assert main(["store", "keys", "things", "--peer", address]) == 0
        assert capsys.readouterr().out == "k\n"

        both = ["--peer", address, "--peer", f"basp://{address}"]
        assert main(["store", "keys", "things", *both]) == 0


def test_no_peer_is_wrong_use():
    assert main(["store", "keys", "things"]) == 2


def test_changes_are_watched(master, capsys):
    store, address = master
    stop = threading.Event()

    def write():
        number = 0
        while not stop.wait(0.05):
            number += 1
            store.put("a/watched", number)
            store.put("b", number)

    writer = threading.Thread(target=write)
    writer.start()
    command = ["store", "watch", "things", "a/", "--count", "2", "--json", "--peer", address]
    assert main(command) == 0
    stop.set()
    writer.join()

    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["key"] for line in lines] == ["a/watched"] * 2
    assert lines[1]["value"] == lines[0]["value"] + 1
