"""What a flow is made of: its machine, what waits in it, and who waits for it.

The rules are in `callboard.flow.machine`, the way to the broker in `callboard.flow.link`; here
they meet the threads and coroutines that wait. Everything that waits does so on a future, so
the same lines serve threads, asyncio, handlers of actors and simulated clusters.
"""

import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final, NoReturn

from actors.errors import AskTimeout, CallboardError
from actors.future import Future
from callboard.flow.errors import (
    FlowAborted,
    FlowEnded,
    FlowError,
    FlowTimeout,
    LocalFlowError,
    MalformedMessage,
    RemoteFlowError,
)
from callboard.flow.link import Link
from callboard.flow.machine import Dat, End, FlowMachine, Opened, State

__all__ = ["DEFAULT_TIMEOUT", "FlowSide", "text_of"]

DEFAULT_TIMEOUT: Final = 5.0
"""Seconds that the other side may take for its BOT, a DAT, a PAY or the echo of EOT."""


class FlowSide:
    """One side of a flow, below the calls of users: see `Flow`."""

    def __init__(self, machine: FlowMachine, timeout: float | None = DEFAULT_TIMEOUT) -> None:
        """Use `Flow.connect`, or a `FlowHandler`."""
        self.timeout = timeout
        self._machine = machine
        self._link: Link | None = None
        self._lock = threading.Lock()
        self._inbox: deque[Dat] = deque()
        self._waiters: list[Future[None]] = []
        self._error: FlowError | None = None
        self._is_open = False
        self._is_closed = False
        #: What the other side's BOT said beside direction and credit.
        self.peer_attributes: Mapping[str, Any] = {}
        #: What the other side's EOT said; None while there was none.
        self.end_attributes: Mapping[str, Any] | None = None

    # --- what it is ---

    @property
    def direction(self) -> str:
        """`extract` when this side gives, `inject` when it takes."""
        return self._machine.direction

    @property
    def is_giver(self) -> bool:
        """True when this side sends the DATs."""
        return self._machine.is_giver

    @property
    def total_credit(self) -> int:
        """DATs that may be under way at most, as both sides agreed."""
        return self._machine.total_credit

    @property
    def credit(self) -> int:
        """Credit that this side has at the moment."""
        return self._machine.credit

    @property
    def state(self) -> State:
        """Where the flow is."""
        return self._machine.state

    def __repr__(self) -> str:
        return f"<Flow {self.direction}, {self.state.value}, credit {self.credit}>"

    def use(self, link: Link) -> None:
        """Send and receive over this link, from the next message on."""
        self._link = link

    # --- what the link says ---

    def received(self, data: bytes) -> None:
        """Take a message of the other side; called by the link."""
        with self._lock:
            try:
                event = self._machine.receive(data)
            except (RemoteFlowError, MalformedMessage) as error:
                self._broken(error)
                event = None
            if isinstance(event, Dat):
                self._inbox.append(event)
            elif isinstance(event, Opened):
                self.peer_attributes = event.attributes
                self._is_open = True
            elif isinstance(event, End):
                self.end_attributes = event.attributes
                if self._machine.is_giver and self._machine.state is State.FINACK:
                    self._answer(self._machine.end())
            waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            waiter.set_result(None)

    def _broken(self, error: FlowError) -> None:
        """The other side broke a rule: remember it and tell it."""
        if self._error is None:
            self._error = error
        if self._machine.state in (State.BOTSEND, State.FLOWING):
            self._answer(self._machine.end({"reason": str(error)}))

    def _answer(self, data: bytes) -> None:
        """Send what nobody called for; a link that takes nothing more ends the flow."""
        try:
            self._send(data)
        except CallboardError as error:
            self._error = self._error or FlowAborted(str(error))

    def lost(self, error: Exception) -> None:
        """Nothing will come any more; called by the link."""
        with self._lock:
            if self._error is None and self._machine.state is not State.FIN:
                self._error = error if isinstance(error, FlowError) else FlowAborted(str(error))
            waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            waiter.set_result(None)

    # --- waiting ---

    def _send(self, data: bytes) -> None:
        if self._link is None:
            msg = "the flow has no link; use Flow.connect or a FlowHandler"
            raise LocalFlowError(msg)
        self._link.send(data)

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _raise_end(self) -> NoReturn:
        """Say why nothing more may be put or got."""
        self._check()
        if self.end_attributes is None:
            msg = f"the flow is {self._machine.state.value!r}; nothing more is put or got"
            raise LocalFlowError(msg)
        reason = self.end_attributes.get("reason")
        if reason:
            raise FlowAborted(str(reason))
        msg = "the other side ended the flow"
        raise FlowEnded(msg, self.end_attributes)

    def _block(self, step: Callable[[], Any]) -> Any:
        """Try a step after each change until it has an outcome."""
        until = self._deadline()
        while True:
            change = self._change(until)
            outcome = step()  # behind `_change`: what comes in between is not missed
            if not outcome:
                try:
                    change.result()
                except AskTimeout:
                    raise self._too_late() from None
                outcome = step()  # most often it is there, and no other future is needed
            if outcome:
                change.set_result(None)  # nobody waits for it
                return outcome

    async def _wait(self, step: Callable[[], Any]) -> Any:
        """Awaitable twin of `_block`."""
        until = self._deadline()
        while True:
            change = self._change(until)
            outcome = step()
            if not outcome:
                try:
                    await change
                except AskTimeout:
                    raise self._too_late() from None
                outcome = step()
            if outcome:
                change.set_result(None)
                return outcome

    def _deadline(self) -> float | None:
        assert self._link is not None
        return None if self.timeout is None else self._link.now() + self.timeout

    def _change(self, until: float | None) -> Future[None]:
        """Return a future of the next message, which fails when it is too late."""
        assert self._link is not None
        future: Future[None] = Future("the other side of the flow")
        if until is not None:
            self._link.set_deadline(future, max(until - self._link.now(), 0.0))
        with self._lock:
            self._waiters.append(future)
        return future

    def _too_late(self) -> FlowTimeout:
        return FlowTimeout(
            f"nothing came within {self.timeout} s (this side: {self.direction}, "
            f"{self.state.value}, credit {self.credit} of {self.total_credit})"
        )


def text_of(error: BaseException) -> str:
    """Return what the other side is told of an error here."""
    text = str(error)
    return f"{type(error).__name__}: {text}"[:500] if text else type(error).__name__
