"""What is left of a simulated cluster: nothing, so that thousands are lived in one process."""

import gc
import weakref
from contextlib import closing

import pytest

from callboard import Actor, handler
from callboard.actors.future import Future
from callboard.simulation import Cluster


@pytest.mark.slow
def test_a_killed_node_is_collected_with_what_waited_on_it(caplog):
    async def wait() -> None:
        await Future()

    with closing(Cluster(1)) as cluster:
        node, other = cluster(2)
        node._start(wait())
        cluster.advance(0.1)
        cluster.kill(node)
        cluster.advance(0.1)
        left = weakref.ref(node)
    del cluster, node, other

    gc.collect()

    assert left() is None
    assert "destroyed" not in caplog.text


class Waiter(Actor):
    """Waits for ever."""

    @handler
    async def on_text(self, msg: str) -> None:
        await Future()


@pytest.mark.slow
def test_a_node_that_is_killed_behind_the_step_of_a_handler_is_collected():
    """The handler was the last task that took a step on its loop."""
    with closing(Cluster(1)) as cluster:
        (node,) = cluster(1)
        node.spawn(Waiter).tell("wait")
        cluster.advance(0.1)
        cluster.kill(node)
        left = weakref.ref(node)
    del cluster, node

    gc.collect()

    assert left() is None
