"""Draining: how a node comes to its end without cutting anything short.

serving -> draining -> refusing -> quiet or out of time -> closed

- draining: other nodes no longer find its names and spawn nothing here. Whatever arrives is
  still handled: it may have been under way, or belong to a conversation that has to end.
- refusing: asks of other nodes fail at once with `NodeClosed`, so that a caller who goes on can
  turn elsewhere. It begins a moment later, and not while something here waits for another
  node, which may have to call back before it can answer.
- the workers: when this node is quiet, its worker processes are drained as well, and what they
  send meanwhile is handled here.
- quiet: no mailbox holds a message, no handler runs or awaits, no answer is owed or awaited,
  and all bytes are written.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from actors.current import current_cell

if TYPE_CHECKING:
    from actors.cell import Cell
    from actors.runtime import Runtime
    from proxies.broker import Broker
    from proxies.names import Names
    from proxies.workers import WorkerPool

DRAIN_TIMEOUT: Final = 30.0
"""Seconds that a drain lasts at most by default."""

SETTLE: Final = 0.2
"""Seconds in which asks of other nodes are still taken: callers that had just found a name."""

LOOK_INTERVAL: Final = 0.01
"""Seconds between two looks whether the node is quiet."""


@dataclass(frozen=True, slots=True)
class Drained:
    """A drain is over; what it returns, and an event.

    Attributes:
        finished: messages handled from its beginning to its end.
        left: messages in mailboxes, handlers under way, and asks without an answer at its
            deadline. They end with the node: their askers get an error, the rest are dead
            letters.
        seconds: how long it took.
        unsent: bytes that no other node had taken at the deadline.

    What the node's workers report is added; one that reports nothing counts as one `left`.
    """

    finished: int
    left: int
    seconds: float
    unsent: int = 0

    @property
    def is_clean(self) -> bool:
        """True when nothing was cut short."""
        return not self.left and not self.unsent


class Drain:
    """One drain of one node, up to the moment when it can be closed."""

    def __init__(
        self,
        runtime: "Runtime",
        broker: "Broker",
        names: "tuple[Names, ...]",
        pools: "Sequence[WorkerPool]",
    ) -> None:
        self._runtime = runtime
        self._broker = broker
        self._names = names
        self._pools = pools

    async def adrain(self, timeout: float) -> Drained:
        """Wait until node and workers are quiet, or `timeout` seconds; on any event loop.

        A handler that awaits this does not wait for itself.
        """
        runtime = self._runtime
        now = runtime.runner.now
        begun, handled = now(), runtime.handled
        for table in self._names:
            table.are_withdrawn = True
        left, unsent = await self._quiet(begun, timeout)
        finished = behind = 0
        for pool in list(self._pools):
            theirs = await pool.adrain(max(0.0, begun + timeout - now()))
            finished, behind = finished + theirs.finished, behind + theirs.left
            left, unsent = await self._quiet(begun, timeout)
        finished += runtime.handled - handled
        report = Drained(finished, left + behind, now() - begun, unsent)
        runtime.emit(report)
        return report

    async def _quiet(self, begun: float, timeout: float) -> tuple[int, int]:
        """Wait until this node is quiet; returns what is left, and bytes unsent."""
        broker, now, own = self._broker, self._runtime.runner.now, current_cell.get()
        while True:
            has_settled = now() - begun >= SETTLE or not broker.wires
            if has_settled and not broker.awaited:
                broker.incoming.refuses_asks = True
            left, unsent = self._left(own), broker.unsent
            is_over = now() - begun >= timeout
            if is_over or (broker.incoming.refuses_asks and not left and not unsent):
                broker.incoming.refuses_asks = True
                return left, unsent
            await asyncio.sleep(LOOK_INTERVAL)

    def _left(self, own: "Cell | None") -> int:
        cells = list(self._runtime.cells.values())
        return self._broker.awaited + sum(cell.unfinished for cell in cells if cell is not own)
