"""Draining: the end of a node after its work in progress is finished.

serving -> draining -> refusing -> quiet or out of time -> closed

One deadline applies to the whole drain: to the steps that other parts register
(`Shutdown.add_drain_step`, such as moving the slots of entities), to the workers, and to
closing the node afterwards.

- draining: other nodes no longer find the node's names and can spawn nothing on it, and its
  consumers of jobs end with `NodeClosed`. Messages that arrive are still handled: they may have
  been sent before, or belong to an exchange that has to be finished.
- refusing: asks of other nodes fail at once with `NodeClosed`, so that the caller can ask
  another node. This state begins a moment after draining. It does not begin while this node
  waits for an answer, because the other node may have to ask this node before it can answer.
  The state lasts for a moment at least, so that asks that are already in flight are refused
  instead of being lost.
- the workers: when this node is quiet, its worker processes are drained, and messages that they
  send until their end are handled here.
- quiet: no mailbox holds a message, no handler runs or awaits, no answer is pending in either
  direction, and all bytes are written.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

from callboard.actors.reference import current_cell
from callboard.actors.runtime import Runtime
from callboard.actors.waits.shutdown import Deadline
from callboard.proxies.broker import Broker
from callboard.proxies.messages import Drained
from callboard.proxies.names.directory import Names
from callboard.proxies.workers.pool import WorkerPool
from callboard.support.dataclass import dataclass

#: Seconds in which asks of other nodes are still accepted, for callers that had just found a
#: name. They are refused for at least as long.
SETTLE: Final = 0.2

#: Seconds between two checks whether the node is quiet.
POLL_SECONDS: Final = 0.01


@dataclass(eq=False, repr=False)
class Drain:
    """One drain of one node, until it can be closed."""

    _runtime: Runtime
    _broker: Broker
    _names: tuple[Names, ...]
    _pools: Sequence[WorkerPool]

    async def adrain(self, timeout: float) -> Drained:
        """Wait until the node and its workers are quiet, for at most `timeout` seconds.

        Can be awaited on any event loop. If a handler awaits this, that handler does not count
        as unfinished work.
        """
        runtime = self._runtime
        deadline = Deadline.after(runtime.now, timeout)
        begun, handled = runtime.now(), runtime.handled
        for table in self._names:
            table.withdraw_all()
        await runtime.shutdown.drain(deadline)
        left, unsent = await self._quiet(begun, deadline)
        finished = unfinished = 0
        for pool in list(self._pools):
            theirs = await pool.adrain(deadline.left())
            finished, unfinished = finished + theirs.finished, unfinished + theirs.left
            left, unsent = await self._quiet(begun, deadline)
        finished += runtime.handled - handled
        report = Drained(finished, left + unfinished, runtime.now() - begun, unsent)
        runtime.report(report)
        return report

    async def _quiet(self, begun: float, deadline: Deadline) -> tuple[int, int]:
        """Wait until this node is quiet; return the unfinished work, and unsent bytes."""
        broker, now, own = self._broker, self._runtime.now, current_cell.get()
        refusing_since = now()
        while True:
            has_settled = now() - begun >= SETTLE or not broker.routes.wires
            if not broker.incoming.refuses_asks:
                refusing_since = now()
                broker.incoming.refuses_asks = has_settled and not broker.awaited
            left, unsent = self._left(own), broker.routes.unsent
            has_refused = now() - refusing_since >= SETTLE or not broker.routes.wires
            is_quiet = broker.incoming.refuses_asks and has_refused and not (left or unsent)
            if is_quiet or not deadline.left():
                broker.incoming.refuses_asks = True
                return left, unsent
            await asyncio.sleep(POLL_SECONDS)

    def _left(self, own: object) -> int:
        """Count the unfinished work of this node, without the actor that drains it."""
        cells = list(self._runtime.contexts.values())
        return self._broker.awaited + sum(cell.unfinished for cell in cells if cell is not own)
