"""Values that no node can use are named at once, with what would fit."""

import pytest

from callboard import Node


def test_one_address_is_no_list_of_them():
    with pytest.raises(TypeError, match=r"join=\['basp://127\.0\.0\.1:1'\]"):
        Node(join="basp://127.0.0.1:1")


def test_what_is_no_class_cannot_be_spawned(make_node):
    with pytest.raises(TypeError, match="5 is not an actor class; derive it"):
        make_node().spawn(5)


@pytest.mark.parametrize("port", [-1, 65536])
def test_there_are_65536_ports(make_node, port):
    with pytest.raises(ValueError, match=f"port {port} is not between 0 and 65535"):
        make_node().listen("127.0.0.1", port)
