"""A module broker on a node of its own."""

from collections.abc import Iterator

import pytest

from callboard import Node
from callboard.gateway.broker import ModuleBroker


@pytest.fixture
def node() -> Iterator[Node]:
    with Node("gateway") as made:
        yield made


@pytest.fixture
def broker(node) -> Iterator[ModuleBroker]:
    with ModuleBroker(node) as made:
        yield made
