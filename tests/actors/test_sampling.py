"""Histograms of what asks take and how long messages wait, from samples."""

from dataclasses import dataclass
from typing import Any

from callboard import Node
from callboard.actors.runner.sampling import EVERY, Sampler
from callboard.support.histogram import Histogram
from tests.actors.sample import Echo
from tests.polling import eventually


@dataclass(eq=False)
class Line:
    depth: int = 0
    taken: int = 0
    keeps_order: bool = True
    alive: bool = True


def classes(histogram: Histogram) -> dict[str, float]:
    return {labels[-1][1]: value for labels, value in histogram.samples()}


def test_a_message_that_is_followed_is_counted_when_it_was_taken_out():
    sampler, line = Sampler(), Line(depth=2, taken=5)
    sampler.follow(line, 10.0)
    sampler.check(None, 10.0)
    line.taken, line.depth = 6, 3
    sampler.check(None, 10.2)
    assert sampler.waits.count == 0
    line.taken = 7
    sampler.check(None, 10.4)

    found = classes(sampler.waits)
    assert (found["0.25"], found["0.5"], found["+Inf"], found["_count"]) == (0, 1, 1, 1)
    assert found["_sum"] == 0.4


def test_a_stuck_actor_counts_as_a_long_wait_and_an_ended_one_is_ignored():
    sampler, hanging, ended = Sampler(), Line(depth=1), Line(depth=1)
    sampler.follow(hanging, 0.0)
    sampler.follow(ended, 0.0)
    sampler.follow(Line(depth=1, keeps_order=False), 0.0)
    sampler.check(None, 0.0)
    ended.alive = False
    sampler.check(None, 100.0)

    assert classes(sampler.waits)["60"] == 0
    assert sampler.waits.count == 1


def test_every_few_checks_one_ask_is_timed_and_one_message_followed():
    sampler, current, timed = Sampler(), Line(depth=1), []
    sampler.time_next_ask = lambda: timed.append(1)
    for _ in range(2 * EVERY):
        sampler.check(current, 1.0)

    assert len(timed) == 2
    current.taken = 1
    sampler.check(None, 1.0)
    assert sampler.waits.count == 1


def test_asks_of_a_node_are_timed_one_after_the_other():
    with Node() as node:
        echo = node.spawn(Echo)
        fresh: Any = node.runtime.fresh_asks
        for count in (1, 2):
            node.runner.sampler.time_next_ask()
            assert echo.ask("x").result(5) == "x"
            assert node.runtime.fresh_asks is fresh
            eventually(lambda count=count: node.stats().ask_seconds.count >= count)
