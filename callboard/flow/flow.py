"""`Flow`: one side of a flow, for clients and for handlers.

The rules of the protocol are in `callboard.flow.protocol.machine`, the link to the broker is in
`callboard.flow.link`. `Flow` adds the threads and coroutines that wait. Every wait is on a
future, so the same code serves threads, asyncio, handlers of actors and simulated clusters.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn, Self

from callboard import locks
from callboard.arguments import limit
from callboard.flow import errors
from callboard.flow.factories import REASON_LIMIT, refuse_in_factory
from callboard.flow.link import NAME, ActorLink, FlowLink, FlowTaker
from callboard.flow.protocol.machine import Dat, End, FlowMachine, FlowState, Opened
from callboard.flow.protocol.message import as_frames
from callboard.kernel.access import Secrets
from callboard.kernel.actors import ActorRef
from callboard.kernel.errors import AskTimeout, CallboardError
from callboard.kernel.reply import Future
from callboard.node import Node
from callboard.support import after_fork, reentry
from callboard.support.items import Items
from callboard.support.slots import DOORS
from callboard.support.text import describe, error_text

#: Seconds to reach a broker's node when a flow sets no limit.
CONNECT_TIME: Final = 10.0


_SCHEMES: Final = ("tcp://", "ipc://", "tcp+draft://", "ipc+draft://")


def is_zeromq(address: object) -> bool:
    """Return whether an address is one of ZeroMQ."""
    return isinstance(address, str) and address.startswith(_SCHEMES)


def zeromq() -> Any:
    """Return the module of flows over ZeroMQ.

    Raises:
        FlowError: pyzmq is not installed.
    """
    try:
        return DOORS.load("zeromq flows")
    except ImportError:
        msg = "flows over ZeroMQ need pyzmq; pip install 'callboard[zmq]'"
        raise errors.FlowError(msg) from None


#: Default limit of DATs in flight.
DEFAULT_CREDIT: Final = 10

#: Default limit, in seconds, of each wait for the other side: its BOT, a DAT, a PAY or EOT.
DEFAULT_TIMEOUT: Final = 5.0


class Flow:
    """A flow: DATs in one direction, and credit for them in the other.

    A client opens a flow with `Flow.connect`; a handler receives one from `FlowHandler`. The
    end of a `with` block sends EOT and waits for its echo: if a giver's block ends without an
    error, the other side has received every DAT. With `timeout=None` waits have no limit.
    """

    def __init__(self, machine: FlowMachine, timeout: float | None = DEFAULT_TIMEOUT) -> None:
        """Use `Flow.connect`, or a `FlowHandler`."""
        self.timeout = limit(timeout)
        #: `extract` if this side sends DATs, `inject` if it receives them.
        self.direction = machine.direction
        #: Whether this side sends the DATs.
        self.is_giver = machine.is_giver
        self._machine = machine
        self._link: FlowLink | None = None
        self._lock = locks.lock("flow", 300)
        self._is_inside = locks.owner_test(self._lock)
        after_fork.register(self)
        self._inbox: deque[Dat] = deque()
        self._waiters: list[Future[None]] = []
        self._error: errors.FlowError | None = None
        self._is_open = False
        self._is_closed = False
        #: Attributes of the other side's BOT, without direction and credit.
        self.peer_attributes: Mapping[str, Any] = {}
        #: Attributes of the other side's EOT; None until it arrives.
        self.end_attributes: Mapping[str, Any] | None = None

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
        secret: Secrets | None = None,
        tls: Any = None,
    ) -> Self:
        """Open a flow as the client of a flow broker.

        Args:
            address: address of the broker: `basp://HOST:PORT`, `basp://HOST:PORT/NAME`, its
                ref, or `tcp://HOST:PORT` over ZeroMQ.
            direction: `extract` to send DATs, `inject` to receive them.
            credit: limit of DATs in flight; the handler may lower it.
            timeout: limit of this and of each later wait, in seconds; None for no limit.
            attributes: attributes of the BOT, for the handler; JSON values.
            node: an existing node to use; by default the flow makes its own.
            secret: shared secret of the broker's node, if it has one.
            tls: TLS for the flow's own node, as in `Node(tls=…)`.

        Raises:
            FlowRefused: no handler accepted the flow; the text is the reason.
            FlowTimeout: the broker did not answer in time.
            NodeUnreachable: no node listens there.
            MalformedMessage: direction, credit or attributes cannot be sent.
        """
        refuse_in_factory("Flow.connect")
        flow = cls(FlowMachine(direction, credit, attributes), timeout)
        flow.use(FlowAddress(address, node, secret, tls, timeout).link(flow))
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
        secret: Secrets | None = None,
        tls: Any = None,
    ) -> Self:
        """Awaitable twin of `connect`."""
        refuse_in_factory("Flow.aconnect")
        flow = cls(FlowMachine(direction, credit, attributes), timeout)
        flow.use(await FlowAddress(address, node, secret, tls, timeout).alink(flow))
        await flow.aopen()
        return flow

    # --- opening ---

    def open(self) -> None:
        """Exchange BOTs. Flows of `connect` and `FlowHandler` are open.

        Raises:
            FlowRefused: the other side did not accept the flow.
            FlowTimeout: the other side did not answer in time; the link is closed.
            FactoryDeadlock: called in a factory of a flow broker.
        """
        refuse_in_factory("open()")
        try:
            self._send_bot()
            self._block(self._opened)
        except BaseException:
            self._give_up("the BOT was not answered")
            if self._link is not None:
                self._link.close()
            raise

    async def aopen(self) -> None:
        """Awaitable twin of `open`."""
        refuse_in_factory("aopen()")
        try:
            self._send_bot()
            await self._wait(self._opened)
        except BaseException:
            self._give_up("the BOT was not answered")
            if self._link is not None:
                await self._link.aclose()
            raise

    def _send_bot(self) -> None:
        """Send this side's BOT."""
        with self._lock:
            self._send(self._machine.open())

    def _opened(self) -> bool:
        """Return whether the other side's BOT has arrived; raise if it refused the flow."""
        self._check()
        if not self._is_open:
            if self.end_attributes is None:
                return False
            reason = self.end_attributes.get("reason", "no reason was given")
            msg = f"the flow was refused: {reason}"
            raise errors.FlowRefused(msg)
        with self._lock:
            if self._machine.wants_to_pay():
                self._send(self._machine.pay())
        return True

    def refuse(self, reason: str, attributes: Mapping[str, Any] | None = None) -> None:
        """Refuse the flow instead of opening it: the client gets EOT with the reason."""
        with self._entered("refuse()"):
            self._send(self._machine.refuse(reason, attributes))

    # --- sending ---

    def put(self, payload: Any = (), **attributes: Any) -> None:
        """Send a DAT; wait for credit if there is none.

        Args:
            payload: bytes, text (as UTF-8), or a sequence of those, one for each frame.
            attributes: attributes of the flow object; JSON values.

        Raises:
            TypeError: this side is the taker, or the payload has another type.
            FlowEnded: the other side ended the flow.
            FlowAborted: the other side ended the flow with a reason, or was lost.
            FlowTimeout: no credit arrived in time.
            WouldDeadlock: called inside another call of this flow, by a finalizer for instance.
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
        """Send a DAT if there is credit."""
        machine = self._machine
        if not machine.is_giver:
            msg = "put() on a taker: this side receives DATs; use get()"
            raise TypeError(msg)
        lock = self._lock
        if self._is_inside() or not lock.acquire(False):  # noqa: FBT003 # each DAT passes here
            reentry.enter(lock, "put()")
        try:
            if machine.state is not FlowState.FLOWING or self._error is not None:
                self._raise_end()
            if machine.credit < 1:
                return False
            self._send(machine.put(frames, attributes))
            return True
        finally:
            lock.release()

    # --- receiving ---

    def get(self) -> Dat:
        """Receive the next DAT; wait until it arrives. Credit is returned in batches.

        Raises:
            TypeError: this side is the giver.
            FlowEnded: the other side ended the flow, and all of its DATs have been received.
            FlowAborted: the other side ended the flow with a reason, or was lost.
            FlowTimeout: no DAT arrived in time.
        """
        dat = self._try_get()
        return self._block(self._try_get) if dat is None else dat

    async def aget(self) -> Dat:
        """Awaitable twin of `get`."""
        dat = self._try_get()
        return await self._wait(self._try_get) if dat is None else dat

    def _try_get(self) -> Dat | None:
        """Return the next DAT if one has arrived, and send a PAY if one is due."""
        machine = self._machine
        if machine.is_giver:
            msg = "get() on a giver: this side sends DATs; use put()"
            raise TypeError(msg)
        lock = self._lock
        if self._is_inside() or not lock.acquire(False):  # noqa: FBT003 # each DAT passes here
            reentry.enter(lock, "get()")
        try:
            if self._inbox:
                dat = self._inbox.popleft()
                machine.taken()
                if machine.wants_to_pay():
                    self._send(machine.pay())
                return dat
            if machine.state is not FlowState.FLOWING or self._error is not None:
                self._raise_end()
            return None
        finally:
            lock.release()

    def __iter__(self) -> Iterator[Dat]:
        with contextlib.suppress(errors.FlowEnded):
            while True:
                yield self.get()

    def __aiter__(self) -> AsyncIterator[Dat]:
        return Items(self.aget, ends=(errors.FlowEnded,))

    # --- ending ---

    def eot(self, reason: str = "", **attributes: Any) -> Mapping[str, Any]:
        """End the flow, or answer the other side's EOT; return the attributes of its EOT.

        Args:
            reason: why this side aborts the flow; the other side raises `FlowAborted` with it.
            attributes: attributes of the EOT; JSON values.

        Raises:
            FlowAborted: the other side ended the flow with a reason, or was lost.
            FlowTimeout: no echo arrived in time.
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
        """Send EOT, unless this side has sent it."""
        with self._entered("the end of a flow"):
            if self._machine.state not in (FlowState.ACKFIN, FlowState.FIN):
                label = {**attributes, "reason": reason} if reason else attributes
                self._send(self._machine.end(label))

    def _finished(self) -> bool:
        """Return whether both sides have sent EOT; raise if the other side gave a reason."""
        self._check()
        if self._machine.state is not FlowState.FIN:
            return False
        reason = (self.end_attributes or {}).get("reason")
        if reason:
            raise errors.FlowAborted(str(reason))
        return True

    def close(self) -> None:
        """End the flow unless it has ended, and close its link. Idempotent.

        Raises:
            FlowAborted: the other side ended the flow with a reason, or was lost.
            FlowTimeout: no echo arrived in time.
        """
        self.__exit__(None, None, None)

    async def aclose(self) -> None:
        """Awaitable twin of `close`."""
        await self.__aexit__(None, None, None)

    def __enter__(self) -> Self:
        return self

    @after_fork.nothing_in_copies
    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if not self._is_closed:
            try:
                if self._wants_eot(error):
                    self.eot()
            finally:
                if self._link is not None:
                    self._link.close()

    async def __aenter__(self) -> Self:
        return self

    @after_fork.nothing_awaited_in_copies
    async def __aexit__(
        self, _kind: object, error: BaseException | None, _trace: object
    ) -> None:
        if not self._is_closed:
            try:
                if self._wants_eot(error):
                    await self.aeot()
            finally:
                if self._link is not None:
                    await self._link.aclose()

    def _wants_eot(self, error: BaseException | None) -> bool:
        """Return whether the end of the block must send EOT; after an error, send it here."""
        self._is_closed = True
        if error is not None:
            self._give_up(describe(error, REASON_LIMIT))
        return error is None and self._machine.state is not FlowState.IDLE

    def _give_up(self, reason: str) -> None:
        """Abort the flow: send EOT with the reason, without waiting for its echo."""
        with self._entered("the end of a flow"):
            machine = self._machine
            if machine.state in (FlowState.BOTSEND, FlowState.FLOWING, FlowState.FINACK):
                self._send(machine.end({"reason": reason}))

    # --- properties ---

    @property
    def total_credit(self) -> int:
        """Limit of DATs in flight, as both sides agreed."""
        return self._machine.total_credit

    @property
    def credit(self) -> int:
        """Credit of this side."""
        return self._machine.credit

    @property
    def state(self) -> FlowState:
        """State of the flow."""
        return self._machine.state

    def __repr__(self) -> str:
        return f"<Flow {self.direction}, {self.state.value}, credit {self.credit}>"

    def use(self, link: FlowLink) -> None:
        """Set the link of the flow."""
        self._link = link

    # --- calls of the link ---

    def received(self, data: bytes) -> None:
        """Handle a message from the other side; called by the link."""
        with self._lock:
            try:
                event = self._machine.receive(data)
            except (errors.RemoteFlowError, errors.MalformedMessage) as error:
                self._broken(error)
                event = None
            if isinstance(event, Dat):
                self._inbox.append(event)
            elif isinstance(event, Opened):
                self.peer_attributes = event.attributes
                self._is_open = True
            elif isinstance(event, End):
                self.end_attributes = event.attributes
                if self._machine.is_giver and self._machine.state is FlowState.FINACK:
                    self._answer(self._machine.end())
            waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            waiter.set_result(None)

    def _wake(self) -> None:
        """Make all waiting calls check their condition again."""
        with self._lock:
            waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            waiter.set_result(None)

    def _broken(self, error: errors.FlowError) -> None:
        """Record that the other side broke a rule, and end the flow with that reason."""
        if self._error is None:
            self._error = error
        if self._machine.state in (FlowState.BOTSEND, FlowState.FLOWING):
            self._answer(self._machine.end({"reason": error_text(error, REASON_LIMIT)}))

    def _answer(self, data: bytes) -> None:
        """Send an answer of the machine; a link that refuses it aborts the flow."""
        try:
            self._send(data)
        except CallboardError as error:
            self._error = self._error or errors.FlowAborted(error_text(error))

    def lost(self, error: Exception) -> None:
        """Handle the loss of the link; called by the link."""
        with self._lock:
            if self._error is None and self._machine.state is not FlowState.FIN:
                self._error = (
                    error
                    if isinstance(error, errors.FlowError)
                    else errors.FlowAborted(error_text(error))
                )
        self._wake()

    # --- waiting ---

    def _send(self, data: bytes) -> None:
        """Send a message over the link."""
        if self._link is None:
            msg = "the flow has no link; use Flow.connect or a FlowHandler"
            raise errors.LocalFlowError(msg)
        self._link.send(data)

    @contextlib.contextmanager
    def _entered(self, call: str) -> Iterator[None]:
        """Hold the lock of the flow during a call of the program.

        Raises:
            WouldDeadlock: this thread is in another call of this flow.
        """
        reentry.enter(self._lock, call)
        try:
            yield
        finally:
            self._lock.release()

    def _check(self) -> None:
        """Raise the error that has ended the flow, if there is one."""
        if self._error is not None:
            raise self._error

    def _raise_end(self) -> NoReturn:
        """Raise the error of a `put` or `get` after the end of the flow."""
        self._check()
        if self.end_attributes is None:
            msg = f"the flow is {self._machine.state.value!r}: no DAT can be sent or received"
            raise errors.LocalFlowError(msg)
        reason = self.end_attributes.get("reason")
        if reason:
            raise errors.FlowAborted(str(reason))
        msg = "the other side ended the flow"
        raise errors.FlowEnded(msg, self.end_attributes)

    def _block(self, step: Callable[[], Any]) -> Any:
        """Run `_wait` on this thread, and block for each change."""
        waits = self._wait(step)
        try:
            while True:
                change = waits.send(None)
                with contextlib.suppress(AskTimeout):  # `_wait` raises it when resumed
                    change.result()
        except StopIteration as end:
            return end.value

    async def _wait(self, step: Callable[[], Any]) -> Any:
        """Try a step after each change until it has an outcome."""
        link = self._link
        assert link is not None
        until = None if self.timeout is None else link.now() + self.timeout
        while True:
            change: Future[None] = Future("the other side of the flow")
            if until is not None:
                link.set_deadline(change, max(until - link.now(), 0.0))
            with self._lock:
                self._waiters.append(change)
            # After the future is registered: a message that arrives between a step and the
            # registration would not wake this wait.
            outcome = step()
            if not outcome:
                try:
                    await change
                except AskTimeout:
                    raise self._too_late() from None
                except BaseException:  # cancelled: or repeated waits would pile up futures
                    with self._lock, contextlib.suppress(ValueError):
                        self._waiters.remove(change)
                    raise
                outcome = step()  # usually succeeds, and saves another future
            if outcome:
                change.set_result(None)  # releases its deadline
                return outcome

    def _too_late(self) -> errors.FlowTimeout:
        """Return the error of a wait that timed out."""
        return errors.FlowTimeout(
            f"the other side did not answer within {self.timeout} s (this side: "
            f"{self.direction}, {self.state.value}, credit {self.credit} of "
            f"{self.total_credit})"
        )


@dataclass(frozen=True, slots=True)
class FlowAddress:
    """The address of a flow broker, and how to connect; fields are as in `Flow.connect`."""

    address: Any
    node: Node | None = None
    secret: Secrets | None = field(default=None, repr=False)
    tls: Any = None
    timeout: float | None = None

    def link(self, taker: FlowTaker) -> FlowLink:
        """Return a link to the flow broker.

        Raises:
            NodeUnreachable: no node listens at the address.
            InvalidAddress: the text is not an address.
        """
        if is_zeromq(self.address):
            return zeromq().ZmqLink(self.address, taker)  # type: ignore[no-any-return]
        if isinstance(self.address, ActorRef):
            return ActorLink(self.node or self.address.home.node, self.address, taker)
        node = self._link_node()
        try:
            ref = node.remote_actor(self.address, self.timeout or CONNECT_TIME)
        except BaseException as error:
            if self.node is None:
                node.close()
            self._translate(error)
            raise
        return ActorLink(node, ref, taker, owns_node=self.node is None)

    async def alink(self, taker: FlowTaker) -> FlowLink:
        """Awaitable twin of `link`."""
        if not isinstance(self.address, str) or is_zeromq(self.address):
            return self.link(taker)
        node = self._link_node()
        try:
            ref = await node.aremote_actor(self.address, self.timeout or CONNECT_TIME)
        except BaseException as error:
            if self.node is None:
                await asyncio.shield(node.aclose())
            self._translate(error)
            raise
        return ActorLink(node, ref, taker, owns_node=self.node is None)

    def _link_node(self) -> Node:
        """Return the node of the link; make one unless `node` is given."""
        return self.node or Node(NAME, secret=self.secret, tls=self.tls)

    def _translate(self, error: BaseException) -> None:
        """Raise a timeout of any layer as `FlowTimeout`."""
        if isinstance(error, TimeoutError):
            msg = f"{self.address} did not answer in time"
            raise errors.FlowTimeout(msg) from error
