"""The link between a flow and its broker, over actors on any nodes."""

from collections import deque
from dataclasses import KW_ONLY, InitVar, dataclass
from typing import Any, Final, Protocol

from callboard import locks
from callboard.flow.errors import FlowAborted
from callboard.kernel.actors import ActorRef, Down, handler
from callboard.kernel.context import CallBack, SystemActor, current_cell
from callboard.kernel.reply import Future
from callboard.node import Node
from callboard.support import reentry

#: Name of a node that is created for one flow.
NAME: Final = "callboard flow"


class FlowTaker(Protocol):
    """The receiver of a link, which is a flow. Called on the link's thread; must not block."""

    def received(self, data: bytes) -> None:
        """Handle a message."""

    def lost(self, error: Exception) -> None:
        """Handle the loss of the link."""


class FlowLink(Protocol):
    """A bidirectional link to a flow broker."""

    def send(self, data: bytes) -> None:
        """Send a message; may be called from any thread, and does not block."""

    def now(self) -> float:
        """Return monotonic time in seconds."""

    def set_deadline(self, future: Future[Any], seconds: float) -> None:
        """Fail a future with `AskTimeout` after some seconds, unless it is done."""

    def close(self) -> None:
        """Close the link after all sent messages have gone out."""

    async def aclose(self) -> None:
        """Awaitable twin of `close`."""


class FlowPort(SystemActor):
    """The endpoint of one side of a flow, which receives the messages from its broker."""

    def __init__(self, broker: ActorRef, taker: FlowTaker) -> None:
        self._broker = broker
        self._taker = taker
        self.monitor(broker)

    @handler
    def receive(self, data: bytes) -> None:
        """Receive a message from the broker; ignore other senders."""
        if self.sender == self._broker:
            self._taker.received(data)

    @handler
    def receive_run(self, run: tuple[bytes, ...]) -> None:
        """Receive several messages from the broker; ignore other senders."""
        if self.sender == self._broker:
            for data in run:
                self._taker.received(data)

    @handler
    def broker_down(self, down: Down) -> None:
        """Handle the end of the broker, or the loss of all paths to it."""
        if self.has_sender:
            return
        text = down.detail or str(down.reason)
        self._taker.lost(FlowAborted(f"the flow broker is lost: {text}"))


@dataclass(eq=False, repr=False)
class ActorLink:
    """A link over BASP, or inside one node.

    A port that is opened in a handler is a child of the handler's actor, and ends with it.

    Attributes:
        node: the node of the port.
        broker: actor of the flow broker.
        taker: receiver of messages.
        owns_node: whether `close` also closes the node.
    """

    node: Node
    broker: InitVar[ActorRef]
    taker: InitVar[FlowTaker]
    _: KW_ONLY
    owns_node: bool = False

    def __post_init__(self, broker: ActorRef, taker: FlowTaker) -> None:
        node = self.node
        self._target = broker.target
        cell = current_cell.get()
        parent = cell.actor if cell is not None and cell.runtime.node is node else node
        self.port: ActorRef[FlowPort] = parent.spawn(FlowPort, broker, taker)
        self._sender = node.context.contexts[self.port.actor_id]
        self._lock = locks.lock("link of flows", 310)
        self._waiting: deque[bytes] = deque()
        #: Whether a flush of the queue is scheduled.
        self._is_posted = False

    def send(self, data: bytes) -> None:
        """Send a message, with the port as its sender.

        Messages that handlers send in one turn are sent as one run, which costs no more than a
        single message. A message that is sent inside another call of the link waits for such a
        turn, too.
        """
        waiting = self._waiting
        if waiting or self.node.context.is_runner_thread() or not reentry.take(self._lock):
            waiting.append(data)
            if not self._is_posted:  # checked after the append: `flush` resets it before
                self._post_flush()
            return
        try:  # keeps the order: a later message must not overtake a run
            if waiting:
                waiting.append(data)
                if not self._is_posted:
                    self._post_flush()
            else:
                self._target.post(data, self._sender)
        finally:
            self._lock.release()

    def _post_flush(self) -> None:
        """Schedule a flush on the port."""
        self._is_posted = True
        self._sender.post(CallBack(self.flush), None)

    def flush(self) -> None:
        """Send the queued messages."""
        self._is_posted = False
        if not reentry.take(self._lock):  # held by this thread, or by one that is interrupted
            if self._waiting:
                self._post_flush()
            return
        try:
            take = self._waiting.popleft
            run = [take() for _ in range(len(self._waiting))]
            if run:
                self._target.post(run[0] if len(run) == 1 else tuple(run), self._sender)
        finally:
            self._lock.release()

    def now(self) -> float:
        """Return the node's time."""
        return self.node.context.now()

    def set_deadline(self, future: Future[Any], seconds: float) -> None:
        """Fail a future after some seconds, unless it is done."""
        self.node.context.set_deadline(future, seconds)

    def close(self) -> None:
        """Stop the port, and the node if it was created for this flow."""
        self.flush()
        self.port.stop()
        if self.owns_node:
            self.node.close()

    async def aclose(self) -> None:
        """Awaitable twin of `close`."""
        self.flush()
        self.port.stop()
        if self.owns_node:
            await self.node.aclose()
