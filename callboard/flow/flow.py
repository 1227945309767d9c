"""One side of a flow as users see it; clients and handlers are this same class."""

from collections.abc import AsyncIterator, Iterator, Mapping
from types import TracebackType
from typing import Any, Final, Self

from callboard.flow.errors import FlowAborted, FlowEnded, FlowRefused
from callboard.flow.guard import refuse_in_factory
from callboard.flow.machine import Dat, FlowMachine, State
from callboard.flow.message import as_frames
from callboard.flow.side import DEFAULT_TIMEOUT, FlowSide, text_of

__all__ = ["DEFAULT_CREDIT", "Flow"]

DEFAULT_CREDIT: Final = 10
"""DATs that may be under way unless a client says otherwise."""


class Flow(FlowSide):
    """A flow: DATs in one direction, paid for with credit that comes back in the other.

    `Flow.connect` makes a client's; handlers get theirs from `FlowHandler`. Leaving the block
    ends the flow with EOT and waits for the echo: when a giver's block is left without an
    error, the other side has taken every DAT. With `timeout=None` waits have no limit.
    """

    @classmethod
    def connect(
        cls,
        address: Any,
        direction: str = "extract",
        credit: int = DEFAULT_CREDIT,
        timeout: float | None = DEFAULT_TIMEOUT,
        *,
        attributes: Mapping[str, Any] | None = None,
        node: Any = None,
        secret: str | bytes | None = None,
        tls: Any = None,
    ) -> Self:
        """Open a flow as the client of a flow broker.

        Args:
            address: of the broker: `basp://HOST:PORT`, `basp://HOST:PORT/NAME`, its ref, or
                `tcp://HOST:PORT` over ZeroMQ.
            direction: `extract` to give DATs, `inject` to take them.
            credit: DATs that may be under way; the handler may lower it.
            timeout: seconds for this, and for each later wait; None for no limit.
            attributes: what the handler is told in the BOT; values that JSON has.
            node: an existing node to use; otherwise the flow has one of its own.
            secret: shared secret of the broker's node, if it has one.
            tls: for the flow's own node, as in `Node(tls=…)`.

        Raises:
            FlowRefused: nobody takes the flow; the text says why.
            FlowTimeout: the broker did not answer in time.
            NodeUnreachable: nobody listens there.
            MalformedMessage: direction, credit or attributes cannot be sent.
        """
        from callboard.flow.opening import open_link

        refuse_in_factory("Flow.connect")
        flow = cls(FlowMachine(direction, credit, attributes), timeout)
        flow.use(open_link(address, flow, node=node, secret=secret, tls=tls, timeout=timeout))
        flow.open()
        return flow

    @classmethod
    async def aconnect(
        cls,
        address: Any,
        direction: str = "extract",
        credit: int = DEFAULT_CREDIT,
        timeout: float | None = DEFAULT_TIMEOUT,
        *,
        attributes: Mapping[str, Any] | None = None,
        node: Any = None,
        secret: str | bytes | None = None,
        tls: Any = None,
    ) -> Self:
        """Awaitable twin of `connect`."""
        from callboard.flow.opening import aopen_link

        refuse_in_factory("Flow.aconnect")
        flow = cls(FlowMachine(direction, credit, attributes), timeout)
        flow.use(
            await aopen_link(address, flow, node=node, secret=secret, tls=tls, timeout=timeout)
        )
        await flow.aopen()
        return flow

    # --- begin ---

    def open(self) -> None:
        """Exchange BOTs. `connect` and `FlowHandler` have done it.

        Raises:
            FlowRefused: the other side does not take the flow.
            FlowTimeout: it did not answer in time; nothing is left behind.
            FactoryDeadlock: called in a factory of a flow broker.
        """
        refuse_in_factory("open()")
        try:
            self._send_bot()
            self._block(self._opened)
        except BaseException:
            self._give_up("the BOT was not answered")
            self._close_link()
            raise

    async def aopen(self) -> None:
        """Awaitable twin of `open`."""
        refuse_in_factory("aopen()")
        try:
            self._send_bot()
            await self._wait(self._opened)
        except BaseException:
            self._give_up("the BOT was not answered")
            await self._aclose_link()
            raise

    def _send_bot(self) -> None:
        with self._lock:
            self._send(self._machine.open())

    def _opened(self) -> bool:
        self._check()
        if not self._is_open:
            if self.end_attributes is None:
                return False
            reason = self.end_attributes.get("reason", "no reason was given")
            msg = f"the flow is refused: {reason}"
            raise FlowRefused(msg)
        with self._lock:
            if self._machine.wants_to_pay():
                self._send(self._machine.pay())
        return True

    def refuse(self, reason: str, attributes: Mapping[str, Any] | None = None) -> None:
        """Answer the client's BOT with EOT instead of `open`: it gets the reason."""
        with self._lock:
            self._send(self._machine.refuse(reason, attributes))

    # --- giving ---

    def put(self, payload: Any = (), **attributes: Any) -> None:
        """Send a DAT; wait for credit if there is none.

        Args:
            payload: bytes, text (as UTF-8), or a sequence of those, one for each frame.
            attributes: for the flow object, values that JSON has.

        Raises:
            TypeError: this side is the taker, or the payload is of another kind.
            FlowEnded: the other side ended the flow.
            FlowAborted: the other side ended with a reason or is lost.
            FlowTimeout: no credit came in time.
        """
        frames = as_frames(payload)
        if not self._try_put(frames, attributes):
            self._block(lambda: self._try_put(frames, attributes))

    async def aput(self, payload: Any = (), **attributes: Any) -> None:
        """Awaitable twin of `put`."""
        frames = as_frames(payload)
        if not self._try_put(frames, attributes):
            await self._wait(lambda: self._try_put(frames, attributes))

    def _try_put(self, frames: tuple[bytes, ...], attributes: Mapping[str, Any]) -> bool:
        machine = self._machine
        if not machine.is_giver:
            msg = "put() on a taker; this side injects, use get()"
            raise TypeError(msg)
        with self._lock:
            if machine.state is not State.FLOWING or self._error is not None:
                self._raise_end()
            if machine.credit < 1:
                return False
            self._send(machine.put(frames, attributes))
            return True

    # --- taking ---

    def get(self) -> Dat:
        """Take the next DAT; wait until it comes. Its credit goes back in time.

        Raises:
            TypeError: this side is the giver.
            FlowEnded: the other side ended the flow, and all its DATs are taken.
            FlowAborted: the other side ended with a reason or is lost.
            FlowTimeout: nothing came in time.
        """
        dat = self._try_get()
        return self._block(self._try_get) if dat is None else dat

    async def aget(self) -> Dat:
        """Awaitable twin of `get`."""
        dat = self._try_get()
        return await self._wait(self._try_get) if dat is None else dat

    def _try_get(self) -> Dat | None:
        machine = self._machine
        if machine.is_giver:
            msg = "get() on a giver; this side extracts, use put()"
            raise TypeError(msg)
        with self._lock:
            if self._inbox:
                dat = self._inbox.popleft()
                machine.taken()
                if machine.wants_to_pay():
                    self._send(machine.pay())
                return dat
            if machine.state is not State.FLOWING or self._error is not None:
                self._raise_end()
            return None

    def __iter__(self) -> Iterator[Dat]:
        while True:
            try:
                dat = self.get()
            except FlowEnded:
                return
            yield dat

    async def __aiter__(self) -> AsyncIterator[Dat]:
        while True:
            try:
                dat = await self.aget()
            except FlowEnded:
                return
            yield dat

    # --- end ---

    def eot(self, reason: str = "", **attributes: Any) -> Mapping[str, Any]:
        """End the flow, or answer the other side's end; returns what its EOT said.

        Args:
            reason: why it ends before its time: the other side gets `FlowAborted` with it.
            attributes: for the flow object.

        Raises:
            FlowAborted: the other side ended with a reason or is lost.
            FlowTimeout: no echo came in time.
        """
        self._send_eot(reason, attributes)
        self._block(self._finished)
        return self.end_attributes or {}

    async def aeot(self, reason: str = "", **attributes: Any) -> Mapping[str, Any]:
        """Awaitable twin of `eot`."""
        self._send_eot(reason, attributes)
        await self._wait(self._finished)
        return self.end_attributes or {}

    def _send_eot(self, reason: str, attributes: Mapping[str, Any]) -> None:
        with self._lock:
            if self._machine.state not in (State.ACKFIN, State.FIN):
                about = {**attributes, "reason": reason} if reason else attributes
                self._send(self._machine.end(about))

    def _finished(self) -> bool:
        self._check()
        if self._machine.state is not State.FIN:
            return False
        reason = (self.end_attributes or {}).get("reason")
        if reason:
            raise FlowAborted(str(reason))
        return True

    def close(self) -> None:
        """End the flow if that is left to do, and its link. Idempotent.

        Raises:
            FlowAborted: the other side ended with a reason or is lost.
            FlowTimeout: no echo came in time.
        """
        if self._is_closed:
            return
        self._is_closed = True
        try:
            if self._machine.state is not State.IDLE:
                self.eot()
        finally:
            self._close_link()

    async def aclose(self) -> None:
        """Awaitable twin of `close`."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            if self._machine.state is not State.IDLE:
                await self.aeot()
        finally:
            await self._aclose_link()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        _: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        elif not self._is_closed:
            self._is_closed = True
            self._give_up(text_of(error))
            self._close_link()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        _: TracebackType | None,
    ) -> None:
        if error is None:
            await self.aclose()
        elif not self._is_closed:
            self._is_closed = True
            self._give_up(text_of(error))
            await self._aclose_link()

    def _give_up(self, reason: str) -> None:
        """Tell the other side that this one fails, and do not wait for its echo."""
        with self._lock:
            machine = self._machine
            if machine.state in (State.BOTSEND, State.FLOWING, State.FINACK):
                self._send(machine.end({"reason": reason}))

    def _close_link(self) -> None:
        if self._link is not None:
            self._link.close()

    async def _aclose_link(self) -> None:
        if self._link is not None:
            await self._link.aclose()
