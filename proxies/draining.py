"""Draining: how a node comes to its end without cutting anything short.

serving -> draining -> refusing -> quiet or out of time -> closed

- draining: other nodes no longer find its names and spawn nothing here. Whatever arrives is
  still handled: it may have been under way, or belong to a conversation that has to end.
- refusing: asks of other nodes fail at once with `NodeClosed`, so that a caller who goes on can
  turn elsewhere. It begins a moment later, and not while something here waits for another
  node, which may have to call back before it can answer.
- quiet: no mailbox holds a message, no handler runs or awaits, no answer is owed or awaited,
  and all bytes are written.
"""

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from actors.current import current_cell

if TYPE_CHECKING:
    from actors.cell import Cell
    from actors.runtime import Runtime
    from proxies.broker import Broker
    from proxies.names import Names

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
        self, runtime: "Runtime", broker: "Broker", names: "tuple[Names, ...]"
    ) -> None:
        self._runtime = runtime
        self._broker = broker
        self._names = names

    async def adrain(self, timeout: float) -> Drained:
        """Wait until the node is quiet, or `timeout` seconds; on any event loop.

        A handler that awaits this does not wait for itself.
        """
        runtime, broker = self._runtime, self._broker
        now, own = runtime.runner.now, current_cell.get()
        begun, handled = now(), runtime.handled
        for table in self._names:
            table.are_withdrawn = True
        while True:
            has_settled = now() - begun >= SETTLE or not broker.wires
            if has_settled and not broker.awaited:
                broker.incoming.refuses_asks = True
            left, unsent = self._left(own), broker.unsent
            is_over = now() - begun >= timeout
            if is_over or (broker.incoming.refuses_asks and not left and not unsent):
                break
            await asyncio.sleep(LOOK_INTERVAL)
        broker.incoming.refuses_asks = True
        report = Drained(runtime.handled - handled, left, now() - begun, unsent)
        runtime.emit(report)
        return report

    def _left(self, own: "Cell | None") -> int:
        cells = list(self._runtime.cells.values())
        return self._broker.awaited + sum(cell.unfinished for cell in cells if cell is not own)
