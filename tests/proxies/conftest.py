"""Nodes that are closed when their test ends."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from callboard import Node

MakeNode = Callable[..., Node]


@pytest.fixture
def make_node() -> Iterator[MakeNode]:
    made: list[Node] = []

    def make(name: str = "", **options: Any) -> Node:
        node = Node(name, **options)
        made.append(node)
        return node

    yield make
    for node in made:
        node.close()
