"""Hosts that share a SQLite file on one machine find each other by sockets beside the file."""

import os
import socket
import stat
import subprocess
import sys
from functools import partial
from itertools import permutations
from pathlib import Path

import pytest

from callboard import Entity, Node, errors, handler
from callboard.entity.state.member_sockets import STALE_SECONDS, MemberSockets
from tests.polling import eventually

pytestmark = pytest.mark.timeout(60)

KEYS = [f"k{number}" for number in range(30)]


class Count(Entity):
    name = "tests.Linked"

    def __init__(self):
        self.count = 0

    @handler
    def on_add(self, number: int) -> int:
        return number + 1


@pytest.fixture
def make_host(tmp_path):
    nodes = []

    def make(name, folder=tmp_path, mode=""):
        node = Node(name)
        nodes.append(node)
        node.host(Count, state=f"sqlite:{folder}/it.db{mode}")
        return node

    yield make
    for node in nodes:
        node.close()


def all_answer(node):
    return [node.entity(Count, key).ask(1, timeout=20).result(30) for key in KEYS]


def sockets_in(folder):
    return [path for path in Path(folder).iterdir() if stat.S_ISSOCK(path.lstat().st_mode)]


def test_hosts_without_a_link_find_each_other_and_every_key_answers(make_host, tmp_path):
    one, two, three = make_host("one"), make_host("two"), make_host("three")

    for node in (one, two, three):
        assert all_answer(node) == [2] * len(KEYS)
    for node, other in permutations((one, two, three), 2):  # a path may lead over the third
        eventually(partial(node.overlay.path, other.node_id))
    eventually(lambda: len({one.entity(Count, key).node_id for key in KEYS}) == 3)
    for node in (one, two, three):
        assert all_answer(node) == [2] * len(KEYS)
    assert {path.stat().st_mode & 0o777 for path in sockets_in(f"{tmp_path}/it.db-nodes")} == {
        0o600
    }
    three.close()
    assert all_answer(one) == [2] * len(KEYS)
    assert len(sockets_in(f"{tmp_path}/it.db-nodes")) == 2


def test_a_host_has_no_port_although_it_listens_for_members(make_host):
    with pytest.raises(errors.CallboardError, match="listen"):
        _ = make_host("one").address


@pytest.mark.parametrize("name", ["with spaces and ünicode", "x" * 120])
def test_the_folder_may_have_a_path_that_no_socket_can_have(make_host, tmp_path, name):
    folder = tmp_path / name
    folder.mkdir()

    nodes = [make_host("one", folder), make_host("two", folder)]

    assert [all_answer(node) for node in nodes] == [[2] * len(KEYS)] * 2


def test_a_socket_of_a_state_for_a_group_can_be_used_by_the_group(make_host, tmp_path):
    make_host("one", mode="?mode=660")

    folder = tmp_path / "it.db-nodes"
    (path,) = sockets_in(folder)
    assert (folder.stat().st_mode & 0o777, path.stat().st_mode & 0o777) == (0o770, 0o660)


def test_a_host_that_is_reachable_is_not_dialed(make_host, tmp_path):
    with Node("middle") as middle:
        middle.listen(f"unix:{tmp_path}/middle")
        one, two = Node("one"), Node("two")
        with one, two:
            for node in (one, two):
                node.connect(middle.address)
            eventually(lambda: one.overlay.path(two.node_id))
            for node in (one, two):
                node.host(Count, state=f"sqlite:{tmp_path}/it.db")

            assert all_answer(one) == all_answer(two) == [2] * len(KEYS)
            assert [len(node.links()) for node in (one, two)] == [1, 1]

            middle.close()  # now there is no other path
            assert all_answer(one) == all_answer(two) == [2] * len(KEYS)


KILLED = """\
import os, signal, sys
from tests.callboard.entity.test_member_links import Count, Node
node = Node("killed")
node.host(Count, state=sys.argv[1])
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_socket_of_a_killed_process_is_removed_when_it_is_old(make_host, tmp_path):
    subprocess.run([sys.executable, "-c", KILLED, f"sqlite:{tmp_path}/it.db"], check=False)
    folder = tmp_path / "it.db-nodes"
    (left,) = sockets_in(folder)

    one = make_host("one")
    assert left in sockets_in(folder)  # it may just not listen yet
    assert all_answer(one) == [2] * len(KEYS)
    long_ago = left.lstat().st_mtime - STALE_SECONDS - 1
    os.utime(left, (long_ago, long_ago))
    make_host("two")

    assert left not in sockets_in(folder)
    assert len(sockets_in(folder)) == 2


def test_a_socket_at_which_somebody_listens_stays_however_old(tmp_path):
    with socket.socket(socket.AF_UNIX) as listener:
        sockets = MemberSockets(tmp_path / "nodes")
        listener.bind(sockets.path(b"n" * 18))
        listener.listen()
        os.utime(sockets.path(b"n" * 18), (1, 1))

        MemberSockets(tmp_path / "nodes").close()

        assert len(sockets_in(tmp_path / "nodes")) == 1
        sockets.close()


def test_an_owner_that_is_not_linked_is_named_with_its_address(
    make_host, tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr("callboard.entity.state.databases.open_sockets", lambda _: None)
    with Node("far") as far:
        far.listen(f"unix:{tmp_path}/far")
        far.host(Count, state=f"sqlite:{tmp_path}/it.db")
        near = make_host("near")
        eventually(lambda: len({near.entity(Count, key).node_id for key in KEYS}) == 2)
        key = next(key for key in KEYS if near.entity(Count, key).node_id == far.node_id)

        with pytest.raises(errors.EntityUnavailable) as caught:
            near.entity(Count, key).ask(1, timeout=0.5).result(10)

        text = str(caught.value)
        assert f"its owner, node {far.node_id.hex()[:12]}, is not linked with near" in text
        assert f"node.connect('{far.address}')" in text
        near.connect(far.address)
        assert near.entity(Count, key).ask(1, timeout=20).result(30) == 2


def test_a_folder_that_cannot_be_used_is_a_warning_that_says_what_to_do(
    make_host, tmp_path, caplog
):
    (tmp_path / "it.db-nodes").write_text("not a folder")

    assert all_answer(make_host("one")) == [2] * len(KEYS)

    assert "one cannot listen for the other processes that use sqlite:" in caplog.text
    assert "link them with node.connect(…) or join=[…]" in caplog.text
