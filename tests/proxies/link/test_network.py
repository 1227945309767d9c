"""Unix sockets as ports: who gets through, what becomes of the file, and addresses."""

import socket
import stat
import tempfile
from pathlib import Path

import pytest

from callboard import Node
from callboard.actors.errors import InvalidAddress, NodeUnreachable
from callboard.proxies.address import MOST_PATH
from callboard.proxies.errors import LinkError
from callboard.proxies.link.network import listen_at
from tests.proxies.cast import Echo, eventually


@pytest.fixture
def path():
    """A short one: paths of sockets are limited."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder, "s.sock")


def test_nodes_link_over_a_file_and_name_actors_behind_it(make_node, path):
    a, b = make_node(), make_node()

    assert a.listen(f"unix:{path}") == 0
    assert a.address == f"basp+unix:{path}:"
    echo = a.spawn(Echo)
    a.register("echo", echo)

    assert b.remote_actor(a.address + "/echo") == echo
    assert b.connect(f"unix:{path}") == a.node_id
    [link] = b.links()
    assert link.address == a.address


def test_the_text_of_a_ref_is_enough_to_reach_its_actor(make_node, path):
    a, b = make_node(), make_node()
    a.listen(f"unix:{path}")

    echo = b.ref(str(a.spawn(Echo)))

    assert echo.ask("x").result(5) == "x"
    assert str(echo).startswith(f"basp+unix:{path}:/")


def test_only_its_owner_can_use_the_file_and_it_goes_with_the_node(path):
    with Node() as node:
        node.listen(f"unix:{path}")
        found = path.stat()

        assert stat.S_ISSOCK(found.st_mode)
        assert stat.S_IMODE(found.st_mode) == 0o600

    assert not path.exists()


def test_a_file_that_a_dead_process_left_is_replaced(make_node, path):
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(str(path))
    a = make_node()

    a.listen(f"unix:{path}")

    assert make_node().connect(a.address) == a.node_id
    assert list(path.parent.iterdir()) == [path]


def test_a_file_in_use_or_of_another_kind_is_left_alone(make_node, path):
    a, b = make_node(), make_node()
    a.listen(f"unix:{path}")

    with pytest.raises(OSError, match="another process listens at"):
        b.listen(f"unix:{path}")
    assert b.connect(a.address) == a.node_id

    other = path.with_name("text")
    other.write_text("text")
    with pytest.raises(OSError, match="is not a socket"):
        b.listen(f"unix:{other}")
    assert other.read_text() == "text"


def test_closing_leaves_the_file_of_a_successor(path):
    first = listen_at(str(path))
    path.unlink()
    second = listen_at(str(path))

    first.close()

    assert path.exists()
    second.close()
    assert not path.exists()


def test_a_lost_link_is_made_again_at_the_same_path(path):
    with Node() as b:
        with Node() as a:
            a.listen(f"unix:{path}")
            b.connect(a.address)
        eventually(lambda: not b.links())
        with Node() as successor:
            successor.listen(f"unix:{path}")
            eventually(lambda: [link.peer for link in b.links()] == [successor.node_id])


def test_a_secret_is_proved_there_too(make_node, path):
    a = make_node(secret="right")
    a.listen(f"unix:{path}")

    assert make_node(secret="right").connect(a.address) == a.node_id
    with pytest.raises(LinkError, match="the shared secrets differ"):
        make_node(secret="wrong").connect(a.address)


def test_nodes_with_tls_use_it_elsewhere_only(make_node, path, papers):
    a, b = make_node(tls=papers.tls("a")), make_node(tls=papers.tls("b"))
    a.listen(f"unix:{path}")

    assert b.connect(a.address) == a.node_id


def test_an_address_that_others_can_reach_goes_before(make_node, path):
    a = make_node()
    a.listen(f"unix:{path}")
    port = a.listen()

    assert a.address == f"basp://127.0.0.1:{port}"


def test_nobody_there_is_said_with_the_path(make_node, path):
    with pytest.raises(NodeUnreachable, match=f"{path}: \\(No such file"):
        make_node().connect(f"unix:{path}")


def test_a_path_that_no_socket_can_have_is_refused(make_node):
    long = "/" + "x" * MOST_PATH

    with pytest.raises(InvalidAddress, match="97 bytes; a socket's path has at most 96"):
        make_node().listen(f"unix:{long}")
