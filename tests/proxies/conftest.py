"""Nodes that are closed when their test ends."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from callboard import Node
from tests.proxies.cast import line
from tests.proxies.papers import Papers

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


@pytest.fixture
def four(make_node):
    """A line a-b-c-d."""
    nodes = [make_node(name) for name in "abcd"]
    line(*nodes)
    return nodes


@pytest.fixture(scope="module")
def papers(tmp_path_factory) -> Papers:
    return Papers(tmp_path_factory.mktemp("tls") / "ours")


@pytest.fixture(scope="module")
def strangers(tmp_path_factory) -> Papers:
    return Papers(tmp_path_factory.mktemp("tls") / "theirs")
