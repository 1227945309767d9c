"""Estimated memory of actors."""

import sys

import pytest

from callboard import Actor, Node, handler
from callboard.proxies.monitoring.object_sizes import measured_sizes


class Holder(Actor):
    def __init__(self, value: object) -> None:
        self.value = value

    @handler
    def text(self, msg: str) -> None: ...


class Other(Actor):
    @handler
    async def wait(self, size: int) -> None:
        block = bytes(size)
        await self.sleep(60)
        assert block


@pytest.fixture
def node():
    with Node() as node:
        yield node


def sizes_of(node, *refs):
    cells = [
        node.context.contexts[int(str(ref).rpartition("/")[2].partition("@")[0])]
        for ref in refs
    ]
    steps = measured_sizes(cells)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


@pytest.mark.parametrize(
    "value",
    [
        bytes(3_000_000),
        [bytes(10_000) for _ in range(300)],
        {f"key {number}": float(number) for number in range(30_000)},
        [[number + 1000, str(number)] for number in range(30_000)],
    ],
    ids=["one block", "blocks", "dict", "lists"],
)
def test_an_actor_of_some_megabytes_is_measured_within_a_quarter(node, value):
    (size,) = sizes_of(node, node.spawn(Holder, value))

    assert size.bytes == pytest.approx(whole_size(value), rel=0.25)
    assert size.bytes > 2_000_000


def whole_size(value):
    """Return the memory of a value and of everything in it."""
    total = sys.getsizeof(value)
    if isinstance(value, dict):
        return total + sum(whole_size(k) + whole_size(v) for k, v in value.items())
    return total + sum(map(whole_size, value)) if isinstance(value, list) else total


def test_the_largest_class_is_first_and_its_largest_actor_is_named(node):
    small = [node.spawn(Holder, None) for _ in range(3)]
    large = node.spawn(Holder, bytes(1_000_000))
    waiting = node.spawn(Other)

    holder, other = sizes_of(node, *small, large, waiting)

    assert (holder.actor_class, holder.actors, holder.measured) == ("Holder", 4, 4)
    assert holder.largest == str(large)
    assert other.actor_class == "Other"


def test_measured_actors_stand_for_the_others_of_their_class(node):
    refs = [node.spawn(Holder, bytes(10_000)) for _ in range(100)]

    (size,) = sizes_of(node, *refs)

    assert size.measured == 20
    assert size.bytes == pytest.approx(100 * 10_000, rel=0.1)


def test_classes_modules_and_the_node_do_not_count(node):
    (size,) = sizes_of(node, node.spawn(Holder, [sys, Holder, node, node.spawn(Other)]))

    assert size.bytes < 10_000


def test_variables_of_a_running_handler_count(node):
    ref = node.spawn(Other)
    ref.tell(500_000)
    node.spawn(Holder, None).ask("later").result(5)

    (size,) = sizes_of(node, ref)

    assert size.bytes > 500_000
