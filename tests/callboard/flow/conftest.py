"""A node with a flow broker, and the parts that its clients need."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from callboard import Node
from callboard.flow import Bot, Flow, FlowBroker
from callboard.flow.factories import FlowSpawn
from tests.callboard.flow.cast import Collector, Counting, Numbers


@pytest.fixture
def node() -> Iterator[Node]:
    with Node("flows") as made:
        yield made


@pytest.fixture
def start(node) -> Callable[..., FlowBroker]:
    """Start a broker on the node; by default it spawns collectors and sources of numbers."""

    def make(factory: Any = None, **options: Any) -> FlowBroker:
        def by_direction(bot: Bot) -> bool:
            return FlowSpawn(node, Collector if bot.direction == "inject" else Numbers)(bot)

        return FlowBroker(node, factory=factory or by_direction, **options)

    return make


@pytest.fixture
def connect(node) -> Callable[..., Flow]:
    def make(broker: Any, direction: str = "extract", **options: Any) -> Flow:
        address = getattr(broker, "ref", broker)
        options.setdefault("timeout", 20)
        return Flow.connect(address, direction, node=node, **options)

    return make


@pytest.fixture(autouse=True)
def fresh_counts() -> None:
    Counting.alive = Counting.most = 0
