"""The actor of a store: runs the machine of a master or a clone for threads and other nodes.

    threads ──write──> inputs ──> machine ──> stores of other nodes, a backend
    stores of other nodes ──────> machine ──> entries, answers, watchers

Frontends run on users' threads. Their writes wait in `inputs` until the actor's turn, and
are executed as one run. Reads use the entries directly; that is correct whenever no write of
this node still waits. Neither acquires a lock. Commands of other nodes arrive from the hub in
runs. Both become steps of the machine, whose effects are executed in order. Effects after a
`Persist` wait until the backend reports it durable. Later steps run in the meantime, and their
changes share the next transaction.
"""

import itertools
import logging
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeVar
from weakref import ref as weak

from callboard import locks
from callboard.arguments import seconds
from callboard.kernel.access import MASTER_NAME
from callboard.kernel.actors import ExitReason, handler
from callboard.kernel.context import CallBack, SystemActor
from callboard.kernel.errors import NotPermitted, ResultTimeout
from callboard.kernel.reply import Future
from callboard.kernel.shutdown import Phase
from callboard.model.errors import InvalidData
from callboard.store.backend.interface import StoreBackend
from callboard.store.errors import BackendFailure, MasterExists, StoreClosed, StoreError
from callboard.store.machine import command
from callboard.store.machine.change import Change, StoreEvent, event_data, event_of
from callboard.store.machine.clone import Clone
from callboard.store.machine.leaf import is_write, may_send
from callboard.store.machine.master import Master
from callboard.store.machine.step import (
    Answer,
    EndpointLost,
    Persist,
    ReportChanges,
    ReportRefused,
    Resign,
    SendRun,
    StoreEffect,
    StoreInput,
    StoreSignal,
)
from callboard.support import after_fork
from callboard.support.dataclass import dataclass
from callboard.topics.hub import Hub
from callboard.topics.machine.effect import Item, PeerEvent, RefusedThere, RunReceiver
from callboard.topics.machine.run import PackedType
from callboard.topics.machine.status import SC
from callboard.topics.machine.topic import (
    STORE_EVENTS,
    checked_topic,
    clone_topic,
    master_topic,
)
from callboard.topics.message_queue import MessageQueue

_log = logging.getLogger("callboard.store")

T = TypeVar("T")

#: Commands that wait for the actor's turn; beyond it, a writing thread waits for room.
INPUT_LIMIT: Final = 16_384

#: Longest wait for room. After it the write is accepted, and clones that are too slow lose
#: their channel and load a snapshot again.
ROOM_SECONDS: Final = 5.0

#: Events that wait for one watcher; beyond it, the oldest are dropped.
WATCH_LIMIT: Final = 65_536

#: Commands of one turn, so that other actors of the node get their turns.
TURN_LIMIT: Final = 512

#: Commands that clones, the master or the disk have not confirmed; beyond it, writers wait.
CONGESTION_LIMIT: Final = 16_384

#: Unconfirmed commands below which waiting writers resume.
RELIEF_LIMIT: Final = CONGESTION_LIMIT // 2


@dataclass(frozen=True, slots=True)
class CommandsRefused:
    """Event: commands of a store had no effect, and their senders do not await an answer.

    Attributes:
        store: name of the store.
        count: number of commands.
        reason: why the first of them had no effect.
    """

    store: str
    count: int
    reason: str


@dataclass(frozen=True, slots=True)
class Leaf:
    """A peer with limited rights, with its rights when its commands arrived.

    Attributes:
        node: id of its node.
        endpoint: id of its endpoint; None if it has no endpoint of its own.
        may_write: whether it may write this store.
    """

    node: bytes
    endpoint: bytes | None
    may_write: bool


def master_name(name: str) -> str:
    """Return the name of a master in the directories of nodes.

    The name of the store is encoded, as it may have characters that a directory refuses.
    """
    return MASTER_NAME + checked_topic(name).encode().hex()


class StoreActor(SystemActor, RunReceiver):
    """The actor of one store, for frontends on any thread and for other nodes."""

    #: Used by each command. The class has more than 30 attributes, and then Python does not
    #: share the keys of instance dictionaries, which makes them slower than slots.
    __slots__ = ("error", "inputs", "is_busy", "is_congested", "wake_pending", "machine")

    #: The refusal of a clone's last request for a copy, and of its last writes.
    _read_refusal: NotPermitted | None = None
    _write_refusal: NotPermitted | None = None

    def __init__(
        self,
        hub: Hub,
        name: str,
        make_machine: Callable[[float], Master | Clone],
        backend: StoreBackend | None,
    ) -> None:
        """Make the machine, and subscribe to the commands of other nodes.

        Args:
            hub: hub of the node.
            name: name of the store.
            make_machine: makes the machine, given the time of the node's clock.
            backend: backend of a master; None for a clone.
        """
        self.hub = hub
        self.name = name
        self.machine = make_machine(self.now())
        self.inputs: deque[command.Action] = deque()
        self.wake_pending = False
        after_fork.own_wake(self)
        self._drain_order = CallBack(self._drain)
        #: Whether the actor executes inputs; set before it removes them from the queue.
        self.is_busy = False
        self.is_congested = False
        #: Notified when threads that wait for room may resume.
        self._room = locks.condition("room of a store", 330)
        #: The reason of the store's end; None while it is open.
        self.error: StoreError | None = None
        self._questions: dict[int, Future[bool]] = {}
        self._numbers = itertools.count(1)
        self._watchers: tuple[tuple[str, MessageQueue[StoreEvent]], ...] = ()
        self._watchers_lock = locks.lock("watchers of a store", 331)
        self._backend = backend
        self._interval = self.machine.options.tick_interval
        self._to_clones = clone_topic(name)
        self._to_masters = master_topic(name)
        self._events = f"{STORE_EVENTS}/{name}"
        #: Effects that wait for the backend, each with the number of the write before it.
        self._deferred: deque[tuple[int, StoreEffect]] = deque()
        self._written = 0
        self._durable = 0
        self._unconfirmed_rows = 0
        #: The timer for the earliest deadline of a key.
        self._timer: Any = None
        self._timer_at = 0.0
        self._idle_awaited: list[Future[bool]] = []
        self._reads_awaited: list[Future[None]] = []
        #: Whether the store ends when all writes are durable.
        self._is_leaving = False
        self._has_ended = False
        #: Done when the actor has ended, and another master of the name may start.
        self._end_waiters: list[Future[None]] = []
        topic = self._to_clones if backend is None else self._to_masters
        hub.refusals.listeners.append(self._record_refusal)  # before the first command is sent
        hub.add_receiver(
            self, [topic], kind=PackedType.COMMAND, sees_own=True
        ).add_done_callback(self._subscribed)
        hub.on_peer_event(self._handle_peer_event)
        self.after(self._interval, StoreSignal.TICK)
        self._arm_timer()

    def __repr__(self) -> str:
        return f"<store {self.name!r}>"

    # --- for users' threads ---

    def write(self, action: command.Action) -> None:
        """Queue a command for the next turn; waits for room if too many commands wait.

        Raises:
            StoreError: the store is closed, or its backend failed.
        """
        if self.error is not None:
            raise self.error
        self.inputs.append(action)
        if not self.wake_pending:
            self._schedule_turn()
        if self.is_congested or len(self.inputs) > INPUT_LIMIT:
            self._wait_for_room()

    def _schedule_turn(self) -> None:
        """Schedule a turn that executes the queued inputs."""
        self.wake_pending = True
        self.post_self(self._drain_order)

    def is_readable(self) -> bool:
        """Return whether all earlier writes of this node can be read."""
        # In this order: the actor sets `is_busy` before it removes inputs. Checked the other
        # way round, inputs that are removed between the two checks would be missed.
        return not self.inputs and not self.is_busy

    def readable(self) -> Future[None]:
        """Return a future that is done when earlier writes can be read, and there is a copy."""
        future: Future[None] = Future(self)
        self.call_soon(self._await_readable, future)
        return self._fail_late(future)

    def idle(self) -> Future[bool]:
        """Return a future that is done when the store is idle."""
        future: Future[bool] = Future(self)
        self.call_soon(self._await_idle, future)
        return self._fail_late(future)

    def question(self) -> tuple[int, Future[bool]]:
        """Return the number of a new request and the future of its answer."""
        request = next(self._numbers)
        future = self._questions[request] = Future(self)
        return request, self._fail_late(future)

    def forget(self, request: int) -> None:
        """Drop a request whose caller no longer waits."""
        self._questions.pop(request, None)
        if isinstance(self.machine, Clone):
            self.machine.forget(request)

    def detach(self) -> Future[None]:
        """End the store after all earlier writes; the future is done when it has ended."""
        future: Future[None] = Future(self)
        self._end_waiters.append(future)  # first: an actor that has ended runs no call
        self.call_soon(self._detach)
        if self._has_ended:
            future.set_result(None)
        return self.runtime.shutdown.guard(future)

    def _fail_late(self, future: Future[T]) -> Future[T]:
        """Fail a future that was made after the end of the store, which would never be done."""
        if self.error is not None:
            future.set_exception(self.error)
        return self.runtime.shutdown.guard(future)

    def _wait_for_room(self) -> None:
        """Wait until there is room for more inputs, unless this is the node's thread."""
        if self.runtime.is_runner_thread():
            return  # the node executes the inputs only after this handler has returned
        with self._room:
            self._room.wait_for(self.has_room, ROOM_SECONDS)

    def has_room(self) -> bool:
        """Return whether a write is accepted without a wait."""
        is_full = self.is_congested or len(self.inputs) > INPUT_LIMIT
        return not is_full or self.error is not None

    async def within(self, future: Future[T], timeout: float) -> T:
        """Await a future for at most `timeout` seconds of the node's clock.

        Raises:
            ResultTimeout: the future was not done in time.
        """
        self.expire_in(future, timeout)
        return await future

    def expire_in(self, future: Future[Any], timeout: float) -> None:
        """Fail a future with `ResultTimeout` after `timeout` seconds."""
        timeout = seconds(timeout)

        def arm() -> None:
            error = ResultTimeout(f"{self!r} did not answer within {timeout:g} s")
            timer = self.runtime.call_later(timeout, future.set_exception, error)
            future.on_done(lambda _: timer.cancel())

        self.runtime.post(arm)

    def watch(self, prefix: str) -> MessageQueue[StoreEvent]:
        """Return a queue that receives the changes of keys with a prefix."""
        queue: MessageQueue[StoreEvent] = MessageQueue(WATCH_LIMIT)
        with self._watchers_lock:
            self._watchers = (*self._watchers, (prefix, queue))
        return queue

    def close_with_node(self, queue: MessageQueue[Any]) -> None:
        """Close a queue when the node ends."""
        reference = weak(queue)

        def close() -> None:
            queue = reference()
            if queue is not None:
                queue.close()

        self.runtime.shutdown.on(Phase.ENDED, close)

    def unwatch(self, queue: MessageQueue[StoreEvent]) -> None:
        """Stop filling a queue."""
        with self._watchers_lock:
            self._watchers = tuple(pair for pair in self._watchers if pair[1] is not queue)

    # --- mail ---

    def _drain(self) -> None:
        """Execute queued inputs of frontends as one run."""
        self.is_busy = True
        self.wake_pending = False
        inputs = self.inputs
        count = min(len(inputs), TURN_LIMIT)
        take = inputs.popleft
        actions = [take() for _index in range(count)]
        if actions:
            self._check_watchers()
            self._execute(self.machine.local(actions, self.now()))
            self._fail_refused_reads()
            self._check_waiters()
        self.is_busy = False
        if inputs and not self.wake_pending:
            self._schedule_turn()
        self._check_congestion()

    def _drain_all(self) -> None:
        """Execute all queued inputs."""
        while self.inputs:
            self._drain()

    def _await_readable(self, future: Future[None]) -> None:
        """Execute queued inputs; complete the future when there is a copy to read."""
        self._drain_all()
        self._reads_awaited.append(future)
        self._fail_refused_reads()
        self._check_waiters()

    def _await_idle(self, future: Future[bool]) -> None:
        """Execute queued inputs; complete the future when the store is idle."""
        self._drain_all()
        self._idle_awaited.append(future)
        self._fail_refused_reads()
        self._fail_refused_writes()
        self._check_idleness()

    def _detach(self) -> None:
        """Execute queued inputs; end the store when all writes are durable."""
        if self.error is not None:
            return  # the actor is about to end
        self._drain_all()
        self.step(StoreSignal.LEAVE)
        self._is_leaving = True
        self._release(self._durable)

    def take_from(self, sender: bytes, items: list[Item], size: int) -> None:
        """Handle commands of other replicas, from the hub; on the node's thread."""
        rights = self.hub.overlay.rights(sender)
        leaf = None
        if rights is not None:  # recorded now: the leaf may be disconnected in the next turn
            may_write = rights.permit_store(self.name, "write")
            leaf = Leaf(sender, self.hub.core.endpoint_of(sender), may_write)
        self.call_soon(self._receive_runs, items, leaf)

    def _receive_runs(self, items: list[Item], leaf: Leaf | None) -> None:
        """Execute commands of other replicas."""
        self._check_watchers()
        now = self.now()
        for _, content in items:
            try:
                run = command.read_run(content)
            except InvalidData as error:
                _log.warning("store %r received a malformed command: %s", self.name, error)
                continue
            if leaf is not None and not may_send(run, leaf.endpoint, may_write=leaf.may_write):
                level = "write" if is_write(run) else "read"
                self.hub.refuse(leaf.node, level, self.name)
                continue
            self._execute(self.machine.receive(run, now))
        self._check_waiters()

    # --- refusals by the node of the master ---

    def _record_refusal(self, refusal: RefusedThere) -> None:
        """Handle a refusal in the next turn; called by the hub, in any turn."""
        if refusal.name == self.name:
            self.call_soon(self._handle_refusal, refusal)

    def _handle_refusal(self, refusal: RefusedThere) -> None:
        """Refuse the reads or writes that a clone may not do, and fail their waiters."""
        machine, right = self.machine, refusal.right
        if not isinstance(machine, Clone) or right not in ("read", "write"):
            return
        error = NotPermitted(f"this node has no right to {right} the store {self.name!r}")
        master = machine.master
        if right == "read" and not machine.has_copy:
            self._read_refusal = error
            self._fail_refused_reads()
        elif (
            right == "write"
            and master is not None
            and (self.hub.core.endpoint_of(refusal.node) == master.endpoint.bytes)
        ):
            self._write_refusal = error
            self._execute(machine.refused(error))
            self._fail_refused_writes()
            self._check_waiters()

    def _fail_refused_reads(self) -> None:
        """Fail the waiters of a clone that may not read, unless it has a copy."""
        error = None if self.machine.has_copy else self._read_refusal
        if error is not None:
            if isinstance(self.machine, Clone):
                self._execute(self.machine.refused(error))
            waiting, self._reads_awaited = self._reads_awaited, []
            idle, self._idle_awaited = self._idle_awaited, []
            for future in (*waiting, *idle):
                future.set_exception(error)  # type: ignore[attr-defined]

    def _fail_refused_writes(self) -> None:
        """Fail the waiters for idleness once, after writes of this clone were refused."""
        error, awaited = self._write_refusal, self._idle_awaited
        if error is not None and awaited:
            self._write_refusal, self._idle_awaited = None, []
            for future in awaited:
                future.set_exception(error)

    @handler
    def step(self, event: StoreSignal | EndpointLost) -> None:
        """Handle a rare event."""
        if event is StoreSignal.TICK:
            self.after(self._interval, event)
        elif event is StoreSignal.KEY_EXPIRES:
            self._timer = None
        self._check_watchers()
        self._execute(self.machine.step(event, self.now()))
        self._check_waiters()

    def _handle_written(self, number: int, rows: int, failure: BackendFailure | None) -> None:
        """Execute the effects that waited for a write, or end the store after a failed one."""
        self._unconfirmed_rows -= rows
        if failure is None:
            self._release(number)
            return
        _log.error("the master of store %r ends: %s", self.name, failure)
        self._deferred.clear()
        self._stop(failure)

    def _handle_peer_event(self, event: PeerEvent) -> None:
        """Handle an event of another endpoint; called by the hub on the node's thread."""
        store_input: StoreInput
        if event.kind is SC.EndpointDiscovered:
            self._read_refusal = None  # the new endpoint may permit reads
            store_input = StoreSignal.ENDPOINT_FOUND
        elif event.kind is SC.EndpointUnreachable and event.endpoint is not None:
            store_input = EndpointLost(event.endpoint)
        else:
            return
        self.post_self(store_input)

    def _subscribed(self, _: Future[None]) -> None:
        """Seek the master or clones, once other endpoints know that this store exists."""
        if self.error is None:
            self.step(StoreSignal.ENDPOINT_FOUND)
            refusal = self.hub.refusals.get("read", self.name)
            if refusal is not None:  # received for another clone on this node
                self._record_refusal(refusal)

    # --- effects ---

    def _execute(self, effects: list[StoreEffect]) -> None:
        """Execute effects in order; effects after a `Persist` wait until it is durable."""
        for effect in effects:
            if isinstance(effect, Persist):
                self._persist(effect)
            elif self._durable < self._written:
                self._deferred.append((self._written, effect))
            else:
                self._execute_one(effect)

    def _persist(self, changes: Persist) -> None:
        """Write changes to the backend."""
        assert self._backend is not None
        self._written += 1
        number, rows = self._written, len(changes.rows)
        self._unconfirmed_rows += rows
        written = partial(self.call_soon, self._handle_written, number, rows)
        self._backend.write(changes, written)

    def _release(self, number: int) -> None:
        """Execute the effects that waited for writes up to a number."""
        self._durable = max(self._durable, number)
        deferred = self._deferred
        while deferred and deferred[0][0] <= self._durable:
            self._execute_one(deferred.popleft()[1])
        self._check_waiters()
        if self._is_leaving and self._durable == self._written:
            self._stop(None)

    def _execute_one(self, effect: StoreEffect) -> None:
        """Execute an effect that does not wait for a write."""
        match effect:
            case SendRun(run, to_master):
                self._send(run, to_master=to_master)
            case Answer(request, value):
                self._answer(request, value)
            case ReportChanges(changes):
                self._report_changes(changes)
            case ReportRefused(count, reason):
                self.runtime.report(CommandsRefused(self.name, count, reason))
                text = "store %r: %d commands had no effect: %s"
                _log.warning(text, self.name, count, reason)
            case Resign(rival):
                self._resign(rival)

    def _send(self, run: command.CommandRun, *, to_master: bool) -> None:
        """Send a run to its receiver, or to all masters or clones if it is nil."""
        topic = self._to_masters if to_master else self._to_clones
        endpoint = run.receiver.endpoint.bytes if run.receiver else None
        self.hub.publishing.command(topic, command.encode_run(run), endpoint)

    def _answer(self, request: int, value: object) -> None:
        """Complete the future of a request, unless its caller has stopped waiting."""
        future = self._questions.pop(request, None)
        if future is not None and isinstance(value, Exception):
            future.set_exception(value)
        elif future is not None:
            future.set_result(bool(value))

    def _report_changes(self, changes: list[Change]) -> None:
        """Send changes to watchers and to the topic of store events."""
        name = self.name
        events = [event_of(name, change) for change in changes] if self._watchers else []
        for prefix, queue in self._watchers:
            matches = [
                event
                for event in events
                if not prefix or (isinstance(event.key, str) and event.key.startswith(prefix))
            ]
            if matches:
                queue.take(matches)
        if self.hub.wants(self._events):
            master = self.machine.master or command.NIL
            for change in changes:
                self.hub.publishing.deliver_here(self._events, event_data(name, change, master))

    def _resign(self, rival: command.EntityId) -> None:
        """End this master: after a partition, the master with the smaller id stays."""
        if self.error is not None:
            return
        msg = (
            f"the store {self.name!r} got another master, {rival}, while its node was not "
            "reachable; this master ends, and its backend keeps the values"
        )
        _log.error(msg)
        self._execute(self.machine.step(StoreSignal.LEAVE, self.now()))
        self._stop(MasterExists(msg))

    # --- after each step ---

    def _check_waiters(self) -> None:
        """Complete the futures whose condition a step may have made true."""
        if self._reads_awaited and self.machine.has_copy:
            waiting, self._reads_awaited = self._reads_awaited, []
            for future in waiting:
                future.set_result(None)
        if self._idle_awaited:
            self._check_idleness()
        if self.is_congested:
            self._check_congestion()
        self._arm_timer()

    def _check_watchers(self) -> None:
        self.machine.wants_changes = bool(self._watchers) or self.hub.wants(self._events)

    def _check_idleness(self) -> None:
        """Complete the waiters for idleness if the store is idle, else request acks for it."""
        is_durable = self._durable == self._written
        if is_durable and not self.inputs and self.machine.is_idle:
            self._complete_idle(is_idle=True)
        else:
            self._idle_awaited = [future for future in self._idle_awaited if not future.done()]
            if self._idle_awaited:
                self._execute(self.machine.step(StoreSignal.HASTEN, self.now()))

    def _complete_idle(self, *, is_idle: bool) -> None:
        """Complete the futures of all waiters for idleness."""
        awaited, self._idle_awaited = self._idle_awaited, []
        for future in awaited:
            future.set_result(is_idle)

    def _check_congestion(self) -> None:
        """Make writing threads wait while too many commands are unconfirmed, or wake them."""
        machine = self.machine
        # A clone without a master makes no thread wait: it buffers writes up to its limit, and
        # refuses more.
        unacknowledged = machine.unacknowledged if machine.is_connected else 0
        limit = RELIEF_LIMIT if self.is_congested else CONGESTION_LIMIT
        self.is_congested = max(unacknowledged, self._unconfirmed_rows) > limit
        if not self.is_congested:
            self._wake_writers()

    def _wake_writers(self) -> None:
        """Wake the threads that wait for room."""
        with self._room:
            self._room.notify_all()

    def _arm_timer(self) -> None:
        """Set the timer for the earliest deadline of a key."""
        due = self.machine.next_expiry
        if due is None or (self._timer is not None and self._timer_at <= due):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = due
        self._timer = self.after(max(due - self.now(), 0.0), StoreSignal.KEY_EXPIRES)

    # --- the end ---

    def _stop(self, error: StoreError | None) -> None:
        """End the store and its actor."""
        self._close(error or StoreClosed(f"the store {self.name!r} was closed"))
        self.hub.off_peer_event(self._handle_peer_event)
        with suppress(ValueError):
            self.hub.refusals.listeners.remove(self._record_refusal)
        self.hub.remove_receiver(self, kind=PackedType.COMMAND)
        self.stop_self()

    def on_end(self, reason: ExitReason, detail: str) -> None:
        """Release all resources, whatever ended the store: `close`, a failure or its node."""
        self._close(StoreClosed(f"the store {self.name!r} ended: {detail or reason}"))
        if self._backend is not None:
            self._backend.close()
            # Before the futures are done: a waiter may create the next master at once, which
            # fails while this name is registered.
            self.hub.node.unregister(master_name(self.name))
        self._has_ended = True
        for future in self._end_waiters:
            future.set_result(None)

    def _close(self, error: StoreError) -> None:
        """Refuse further commands, and fail all waiters with the error."""
        if self.error is not None:
            return
        self.error = error
        questions, self._questions = self._questions, {}
        for future in questions.values():
            future.set_exception(error)
        for _, queue in self._watchers:
            queue.close()
        self._wake_writers()
        self._complete_idle(is_idle=False)
