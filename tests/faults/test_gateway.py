"""Eight threads that do what they like with one module broker."""

import pytest

from callboard import Node
from tests.callboard.gateway.hammer import hammer
from tests.faults import ROUNDS

SECONDS = 15.0 * ROUNDS


@pytest.mark.timeout(120 + 2 * SECONDS)
def test_threads_that_add_remove_link_and_publish_lose_nothing(figure):
    with Node("hammered") as node:
        report = hammer(node, seconds=SECONDS, threads=8, seed=2)

    figure(f"{report.acts:,} changes, {report.published:,} messages on links that stayed")
    assert report.stuck == []
    assert report.overlaps == 0
    assert report.lost == 0
    assert report.published > 1_000 * SECONDS
