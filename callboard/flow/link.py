"""The link of a flow with its broker, over actors on any nodes."""

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

#: The name of the node that a flow makes for itself.
NAME: Final = "callboard flow"


class FlowTaker(Protocol):
    """Who takes what arrives: a flow. Called on the link's thread, must be quick."""

    def received(self, data: bytes) -> None:
        """Take one message."""

    def lost(self, error: Exception) -> None:
        """Nothing will come any more."""


class FlowLink(Protocol):
    """A way to a flow broker and back."""

    def send(self, data: bytes) -> None:
        """Send a message; from any thread, never blocks."""

    def now(self) -> float:
        """Return monotonic time in seconds."""

    def set_deadline(self, future: Future[Any], seconds: float) -> None:
        """Let a future fail with `AskTimeout` unless it is done by then."""

    def close(self) -> None:
        """End the link; what was sent goes out before."""

    async def aclose(self) -> None:
        """Awaitable twin of `close`."""


class FlowPort(SystemActor):
    """The routing id of one side of one flow: what its broker sends arrives here."""

    def __init__(self, broker: ActorRef[Any], taker: FlowTaker) -> None:
        self._broker = broker
        self._taker = taker
        self.monitor(broker)

    @handler
    def receive(self, data: bytes) -> None:
        """Take a message of the broker; others have nothing to say here."""
        if self.sender == self._broker:
            self._taker.received(data)

    @handler
    def receive_run(self, run: tuple[bytes, ...]) -> None:
        """Take several messages of the broker."""
        if self.sender == self._broker:
            for data in run:
                self._taker.received(data)

    @handler
    def broker_down(self, down: Down) -> None:
        """The broker ended, or no path leads to it."""
        if self.is_told:
            return
        text = down.detail or str(down.reason)
        self._taker.lost(FlowAborted(f"the flow broker is lost: {text}"))


@dataclass(eq=False, repr=False)
class ActorLink:
    """A link over BASP, or inside one node.

    Its port, opened in a handler, is a child of the handler's actor, and ends with it.

    Attributes:
        node: where the port lives.
        broker: the flow broker's actor.
        taker: takes what arrives.
        owns_node: close the node at the end.
    """

    node: Node
    broker: InitVar[ActorRef[Any]]
    taker: InitVar[FlowTaker]
    _: KW_ONLY
    owns_node: bool = False

    def __post_init__(self, broker: ActorRef[Any], taker: FlowTaker) -> None:
        node = self.node
        self._target = broker.target
        cell = current_cell.get()
        parent = cell.actor if cell is not None and cell.runtime.node is node else node
        self.port: ActorRef[FlowPort] = parent.spawn(FlowPort, broker, taker)
        self._sender = node.context.contexts[self.port.actor_id]
        self._lock = locks.lock("link of flows", 310)
        self._waiting: deque[bytes] = deque()
        #: Whether the port is about to send what waits.
        self._is_posted = False

    def send(self, data: bytes) -> None:
        """Send a message, with the port as its sender.

        What handlers send in one turn goes as one run: each run costs as much as a message.
        What is sent inside another call of the link waits for that turn, too.
        """
        is_later = self._waiting or self.node.context.is_runner_thread()
        if is_later or not reentry.take(self._lock):
            self._send_later(data)
            return
        try:  # a run that is on its way is not overtaken
            if self._waiting:
                self._send_later(data)
            else:
                self._target.post(data, self._sender)
        finally:
            self._lock.release()

    def _send_later(self, data: bytes) -> None:
        """Let a message wait for the node's thread."""
        self._waiting.append(data)
        if not self._is_posted:  # looked at behind the append: `flush` does it before it takes
            self._post_flush()

    def _post_flush(self) -> None:
        """Let the port send what waits."""
        self._is_posted = True
        self._sender.post(CallBack(self.flush), None)

    def flush(self) -> None:
        """Send what waits."""
        self._is_posted = False
        if not reentry.take(
            self._lock
        ):  # it is held by a thread that has been interrupted, or this one
            if self._waiting:
                self._post_flush()
            return
        try:
            run = []
            while self._waiting:
                run.append(self._waiting.popleft())
            if run:
                self._target.post(run[0] if len(run) == 1 else tuple(run), self._sender)
        finally:
            self._lock.release()

    def now(self) -> float:
        """Return the node's time."""
        return self.node.context.now()

    def set_deadline(self, future: Future[Any], seconds: float) -> None:
        """Let a future fail unless it is done by then."""
        self.node.context.set_deadline(future, seconds)

    def close(self) -> None:
        """Stop the port, and the node if it was made for this flow."""
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
