"""A store on a node: the machine of a master or a clone, in an actor that threads may call.

    threads ──write──> inputs ──> machine ──> stores of other nodes, a backend
    stores of other nodes ──────> machine ──> entries, answers, watchers

Frontends live on the threads of users. What they write waits in `inputs` until the actor's turn
and is carried out as one run; reads look at the entries directly, which is right whenever
nothing that was written here still waits. No lock is taken for either. Commands of other nodes
arrive from the hub in runs. Both become steps of the machine, whose effects are carried out in
order. Effects behind a `Persist` wait until the backend says that it is durable; later steps go
on meanwhile, and what they want to persist shares the next transaction.
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
from callboard.endpoint.hub import Hub
from callboard.endpoint.machine.effect import Item, PeerEvent, RefusedThere, RunReceiver
from callboard.endpoint.machine.run import PackedType
from callboard.endpoint.machine.status import SC
from callboard.endpoint.machine.topic import (
    STORE_EVENTS,
    checked_topic,
    clone_topic,
    master_topic,
)
from callboard.endpoint.message_queue import MessageQueue
from callboard.kernel.access import MASTER_NAME
from callboard.kernel.actors import ExitReason, handler
from callboard.kernel.checks import seconds
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
from callboard.store.machine.leaf import is_write, may_say
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

_LOG: Final = logging.getLogger("callboard.store")

T = TypeVar("T")

#: Commands that wait for the actor's turn: a thread that writes more waits for it.
INPUT_LIMIT: Final = 16_384

#: Seconds that such a thread waits at most; then clones that are too slow must begin anew.
WAIT_FOR_ROOM: Final = 5.0

#: Events that wait for one watcher; older ones are dropped beyond it.
WATCH_LIMIT: Final = 65_536

#: Commands that one turn takes: the node's other actors have their turns too.
TURN_LENGTH: Final = 512

#: Commands on the way to clones, a master or a disk beyond which threads that write wait.
CONGESTION: Final = 16_384

#: Commands on the way below which they go on.
RELIEF: Final = CONGESTION // 2


@dataclass(frozen=True, slots=True)
class CommandsRefused:
    """Event: commands of a store had no effect, and nobody waited to hear it.

    Attributes:
        store: its name.
        count: commands.
        reason: of the first of them.
    """

    store: str
    count: int
    reason: str


@dataclass(frozen=True, slots=True)
class Leaf:
    """A peer with limited rights that sent commands, as it was when they came.

    Attributes:
        node: its node.
        endpoint: its endpoint, if it has one that is its own.
        may_write: whether it may write this store.
    """

    node: bytes
    endpoint: bytes | None
    may_write: bool


def master_name(name: str) -> str:
    """Return the name in the directories of nodes; a store's own name may have any letters."""
    return MASTER_NAME + checked_topic(name).encode().hex()


class StoreActor(SystemActor, RunReceiver):
    """Runs the machine of one store, for frontends on any thread and for other nodes."""

    #: Used by each command; with more than 30 keys a dictionary is not shared.
    __slots__ = ("error", "inputs", "is_busy", "is_congested", "wake_pending", "machine")

    #: Why a clone gets no copy, and why its last writes had no effect.
    _unread: NotPermitted | None = None
    _unwritten: NotPermitted | None = None

    def __init__(
        self,
        hub: Hub,
        name: str,
        make_machine: Callable[[float], Master | Clone],
        backend: StoreBackend | None,
    ) -> None:
        """Run a machine.

        Args:
            hub: of the node.
            name: of the store.
            make_machine: makes the machine, at a time of the node's clock.
            backend: of a master; a clone has none.
        """
        self.hub = hub
        self.name = name
        self.machine = make_machine(self.now())
        self.inputs: deque[command.Action] = deque()
        self.wake_pending = False
        after_fork.own_wake(self)
        self._drain_order = CallBack(self._drain)
        #: True while the actor carries out what it took; set before it takes.
        self.is_busy = False
        self.is_congested = False
        #: Notified when threads that wait for room may go on.
        self._room = locks.condition("room of a store", 330)
        #: Why the store has ended; None while it has not.
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
        self._held: deque[tuple[int, StoreEffect]] = deque()
        self._written = 0
        self._durable = 0
        self._rows_under_way = 0
        #: When the first key expires, as far as there is a timer for it.
        self._timer: Any = None
        self._timer_at = 0.0
        self._idle_awaited: list[Future[bool]] = []
        self._settled_awaited: list[Future[None]] = []
        #: Done when the store has ended, once that is wanted.
        self._is_leaving = False
        self._has_ended = False
        #: Resolved when the actor has ended, and another master of the name may start.
        self._end_waiters: list[Future[None]] = []
        topic = self._to_clones if backend is None else self._to_masters
        hub.refusal_listeners.append(self._note_refusal)  # before there can be one
        hub.add_receiver(
            self, [topic], kind=PackedType.COMMAND, sees_own=True
        ).add_done_callback(self._subscribed)
        hub.on_peer_event(self._peer_event)
        self.after(self._interval, StoreSignal.TICK)
        self._arm_timer()

    def __repr__(self) -> str:
        return f"<store {self.name!r}>"

    # --- for threads of users ---

    def write(self, action: command.Action) -> None:
        """Carry out a command in the next turn; waits while too much waits.

        Raises:
            StoreError: the store is closed, or its backend failed.
        """
        if self.error is not None:
            raise self.error
        self.inputs.append(action)
        if not self.wake_pending:
            self._poke()
        if self.is_congested or len(self.inputs) > INPUT_LIMIT:
            self._wait_for_room()

    def _poke(self) -> None:
        """Take what waits in the next turn."""
        self.wake_pending = True
        self.post_self(self._drain_order)

    def is_settled(self) -> bool:
        """Return whether all that was written here so far can be read."""
        # In this order: the actor says that it is busy before it takes.
        return not self.inputs and not self.is_busy

    def settle(self) -> Future[None]:
        """Return a future that is done when all that was written so far can be read.

        A clone has a copy then.
        """
        future: Future[None] = Future(self)
        self.call_soon(self._settle, future)
        return self._fail_late(future)

    def idle(self) -> Future[bool]:
        """Return a future that is done when the store is idle."""
        future: Future[bool] = Future(self)
        self.call_soon(self._await_idle, future)
        return self._fail_late(future)

    def question(self) -> tuple[int, Future[bool]]:
        """Return a new request, and the future of its answer."""
        request = next(self._numbers)
        future = self._questions[request] = Future(self)
        return request, self._fail_late(future)

    def forget(self, request: int) -> None:
        """Nobody waits for the answer to a request any more."""
        self._questions.pop(request, None)
        if isinstance(self.machine, Clone):
            self.machine.forget(request)

    def detach(self) -> Future[None]:
        """End the store behind what was written; the future is done when it has ended."""
        future: Future[None] = Future(self)
        self._end_waiters.append(future)  # first: an actor that has ended runs no call
        self.call_soon(self._detach)
        if self._has_ended:
            future.set_result(None)
        return self.runtime.shutdown.guard(future)

    def _fail_late(self, future: Future[T]) -> Future[T]:
        """Fail what was asked after the end: nobody will answer."""
        if self.error is not None:
            future.set_exception(self.error)
        return self.runtime.shutdown.guard(future)

    def _wait_for_room(self) -> None:
        """Let a thread outside of the node wait until less waits."""
        if self.runtime.is_runner_thread():
            return  # a handler never waits; its node goes on when it returns
        with self._room:
            self._room.wait_for(self.has_room, WAIT_FOR_ROOM)

    def has_room(self) -> bool:
        """Return whether a write would not wait."""
        is_full = self.is_congested or len(self.inputs) > INPUT_LIMIT
        return not is_full or self.error is not None

    async def within(self, future: Future[T], timeout: float) -> T:
        """Await a future for some time at most, by the node's clock.

        Raises:
            ResultTimeout: the time is over.
        """
        self.expire_in(future, timeout)
        return await future

    def expire_in(self, future: Future[Any], timeout: float) -> None:
        """Fail a future with `ResultTimeout` when the time is over."""
        timeout = seconds(timeout)

        def arm() -> None:
            error = ResultTimeout(f"{self!r} did not answer within {timeout:g} s")
            timer = self.runtime.call_later(timeout, future.set_exception, error)
            future.on_done(lambda _: timer.cancel())

        self.runtime.post(arm)

    def watch(self, prefix: str) -> MessageQueue[StoreEvent]:
        """Return a queue of the changes of keys that start with a text."""
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
            self._watchers = tuple(one for one in self._watchers if one[1] is not queue)

    # --- mail ---

    def _drain(self) -> None:
        """Take what frontends wrote, as one run."""
        self.is_busy = True
        self.wake_pending = False
        inputs = self.inputs
        count = min(len(inputs), TURN_LENGTH)
        take = inputs.popleft
        actions = [take() for _index in range(count)]
        if actions:
            self._look_for_watchers()
            self._carry_out(self.machine.local(actions, self.now()))
            self._fail_unread()
            self._look_around()
        self.is_busy = False
        if inputs and not self.wake_pending:
            self._poke()
        self._look_for_congestion()

    def _drain_all(self) -> None:
        """Take all that waits."""
        while self.inputs:
            self._drain()

    def _settle(self, future: Future[None]) -> None:
        """Say that there is a copy to read, and that what was written is on its way."""
        self._drain_all()
        self._settled_awaited.append(future)
        self._fail_unread()
        self._look_around()

    def _await_idle(self, future: Future[bool]) -> None:
        """Say so when the store is idle."""
        self._drain_all()
        self._idle_awaited.append(future)
        self._fail_unread()
        self._fail_unwritten()
        self._look_for_idleness()

    def _detach(self) -> None:
        """End, when all that was written is durable."""
        if self.error is not None:
            return  # the end is under way
        self._drain_all()
        self.step(StoreSignal.LEAVE)
        self._is_leaving = True
        self._release(self._durable)

    def take_from(self, sender: bytes, items: list[Item], size: int) -> None:
        """Take a run of the hub: commands of other stores; on the node's thread."""
        rights = self.hub.overlay.rights(sender)
        leaf = None
        if rights is not None:  # as it is now: in the turn to come the leaf may be gone
            may_write = rights.permit_store(self.name, "write")
            leaf = Leaf(sender, self.hub.core.endpoint_of(sender), may_write)
        self.call_soon(self._take, items, leaf)

    def _take(self, items: list[Item], leaf: Leaf | None) -> None:
        """Take commands of other stores."""
        self._look_for_watchers()
        now = self.now()
        for _, content in items:
            try:
                run = command.read_run(content)
            except InvalidData as error:
                _LOG.warning("store %r was sent what is not a command: %s", self.name, error)
                continue
            if leaf is not None and not may_say(run, leaf.endpoint, may_write=leaf.may_write):
                level = "write" if is_write(run) else "read"
                self.hub.refuse(leaf.node, level, self.name)
                continue
            self._carry_out(self.machine.receive(run, now))
        self._look_around()

    # --- what the node of the master does not permit ---

    def _note_refusal(self, refusal: RefusedThere) -> None:
        """Hear what other endpoints refuse this one, as the hub tells it: in any turn."""
        if refusal.name == self.name:
            self.call_soon(self._refused, refusal)

    def _refused(self, refusal: RefusedThere) -> None:
        """Give up what a clone has no right to, and tell those who wait."""
        machine, right = self.machine, refusal.right
        if not isinstance(machine, Clone) or right not in ("read", "write"):
            return
        error = NotPermitted(f"this node has no right to {right} the store {self.name!r}")
        master = machine.master
        if right == "read" and not machine.has_copy:
            self._unread = error
            self._fail_unread()
        elif (
            right == "write"
            and master is not None
            and (self.hub.core.endpoint_of(refusal.node) == master.endpoint.bytes)
        ):
            self._unwritten = error
            self._carry_out(machine.refused(error))
            self._fail_unwritten()
            self._look_around()

    def _fail_unread(self) -> None:
        """Fail those who wait for a copy that does not come."""
        error = None if self.machine.has_copy else self._unread
        if error is not None:
            if isinstance(self.machine, Clone):
                self._carry_out(self.machine.refused(error))
            settled, self._settled_awaited = self._settled_awaited, []
            idle, self._idle_awaited = self._idle_awaited, []
            for future in (*settled, *idle):
                future.set_exception(error)  # type: ignore[attr-defined]

    def _fail_unwritten(self) -> None:
        """Fail those who wait for writes that had no effect; the first to wait hears of it."""
        error, awaited = self._unwritten, self._idle_awaited
        if error is not None and awaited:
            self._unwritten, self._idle_awaited = None, []
            for future in awaited:
                future.set_exception(error)

    @handler
    def step(self, event: StoreSignal | EndpointLost) -> None:
        """Take a rare event."""
        if event is StoreSignal.TICK:
            self.after(self._interval, event)
        elif event is StoreSignal.KEY_EXPIRES:
            self._timer = None
        self._look_for_watchers()
        self._carry_out(self.machine.step(event, self.now()))
        self._look_around()

    def _write_ended(self, number: int, rows: int, failure: BackendFailure | None) -> None:
        """A write is durable, or failed: go on with what waited for it, or end."""
        self._rows_under_way -= rows
        if failure is None:
            self._release(number)
            return
        _LOG.error("the master of store %r ends: %s", self.name, failure)
        self._held.clear()
        self._stop(failure)

    def _peer_event(self, event: PeerEvent) -> None:
        """Hear of other endpoints, as the hub tells it: on the node's thread, in any turn."""
        happened: StoreInput
        if event.kind is SC.EndpointDiscovered:
            self._unread = None  # that one may permit it
            happened = StoreSignal.ENDPOINT_FOUND
        elif event.kind is SC.EndpointUnreachable and event.endpoint is not None:
            happened = EndpointLost(event.endpoint)
        else:
            return
        self.post_self(happened)

    def _subscribed(self, _: Future[None]) -> None:
        """Begin: other endpoints know that there is a store here."""
        if self.error is None:
            self.step(StoreSignal.ENDPOINT_FOUND)
            refusal = self.hub.refusals.get(("read", self.name))
            if refusal is not None:  # another clone here was told
                self._note_refusal(refusal)

    # --- effects ---

    def _carry_out(self, effects: list[StoreEffect]) -> None:
        """Carry out effects in order; those behind a `Persist` wait for it."""
        for effect in effects:
            if isinstance(effect, Persist):
                self._persist(effect)
            elif self._durable < self._written:
                self._held.append((self._written, effect))
            else:
                self._carry_out_one(effect)

    def _persist(self, changes: Persist) -> None:
        """Hand changes to the backend."""
        assert self._backend is not None
        self._written += 1
        number, rows = self._written, len(changes.rows)
        self._rows_under_way += rows
        self._backend.write(changes, partial(self.call_soon, self._write_ended, number, rows))

    def _release(self, number: int) -> None:
        """Carry out what waited for a write."""
        self._durable = max(self._durable, number)
        held = self._held
        while held and held[0][0] <= self._durable:
            self._carry_out_one(held.popleft()[1])
        self._look_around()
        if self._is_leaving and self._durable == self._written:
            self._stop(None)

    def _carry_out_one(self, effect: StoreEffect) -> None:
        """Carry out an effect that nothing holds back."""
        match effect:
            case SendRun(run, to_master):
                self._send(run, to_master=to_master)
            case Answer(request, value):
                self._answer(request, value)
            case ReportChanges(changes):
                self._tell(changes)
            case ReportRefused(count, reason):
                self.runtime.report(CommandsRefused(self.name, count, reason))
                text = "store %r: %d commands had no effect: %s"
                _LOG.warning(text, self.name, count, reason)
            case Resign(rival):
                self._resign(rival)

    def _send(self, run: command.CommandRun, *, to_master: bool) -> None:
        """Send a run to one store, or to all masters or clones."""
        topic = self._to_masters if to_master else self._to_clones
        endpoint = run.receiver.endpoint.bytes if run.receiver else None
        self.hub.command(topic, command.encode_run(run), endpoint)

    def _answer(self, request: int, value: object) -> None:
        """Answer a question, if somebody still wants to know."""
        future = self._questions.pop(request, None)
        if future is not None and isinstance(value, Exception):
            future.set_exception(value)
        elif future is not None:
            future.set_result(bool(value))

    def _tell(self, changes: list[Change]) -> None:
        """Tell watchers and the topic of store events what changed."""
        name = self.name
        events = [event_of(name, change) for change in changes] if self._watchers else []
        for prefix, queue in self._watchers:
            wanted = [
                event
                for event in events
                if not prefix or (isinstance(event.key, str) and event.key.startswith(prefix))
            ]
            if wanted:
                queue.take(wanted)
        if self.hub.wants(self._events):
            who = self.machine.master or command.NIL
            for change in changes:
                self.hub.deliver_here(self._events, event_data(name, change, who))

    def _resign(self, rival: command.EntityId) -> None:
        """End after a partition: of two masters that meet, the smaller name stays."""
        if self.error is not None:
            return
        msg = (
            f"another master of the store {self.name!r} was made at {rival} while "
            "it was out of reach; this one ends, what it holds is still in its backend"
        )
        _LOG.error(msg)
        self._carry_out(self.machine.step(StoreSignal.LEAVE, self.now()))
        self._stop(MasterExists(msg))

    # --- after each step ---

    def _look_around(self) -> None:
        """Look for what a step may have made true."""
        if self._settled_awaited and self.machine.has_copy:
            settled, self._settled_awaited = self._settled_awaited, []
            for future in settled:
                future.set_result(None)
        if self._idle_awaited:
            self._look_for_idleness()
        if self.is_congested:
            self._look_for_congestion()
        self._arm_timer()

    def _look_for_watchers(self) -> None:
        self.machine.wants_changes = bool(self._watchers) or self.hub.wants(self._events)

    def _look_for_idleness(self) -> None:
        """Tell those who wait for it that the store is idle, or work towards it."""
        is_durable = self._durable == self._written
        if is_durable and not self.inputs and self.machine.is_idle:
            self._tell_idle(is_idle=True)
        else:
            self._idle_awaited = [one for one in self._idle_awaited if not one.done()]
            if self._idle_awaited:
                self._carry_out(self.machine.step(StoreSignal.HASTEN, self.now()))

    def _tell_idle(self, *, is_idle: bool) -> None:
        """Tell those who wait for it whether the store is idle."""
        awaited, self._idle_awaited = self._idle_awaited, []
        for future in awaited:
            future.set_result(is_idle)

    def _look_for_congestion(self) -> None:
        """Let threads that write wait while too much is on the way, or go on."""
        machine = self.machine
        # Without a master nobody waits: a clone keeps its writes, and refuses too many.
        unacknowledged = machine.unacknowledged if machine.is_connected else 0
        limit = RELIEF if self.is_congested else CONGESTION
        self.is_congested = max(unacknowledged, self._rows_under_way) > limit
        if not self.is_congested:
            self._wake_writers()

    def _wake_writers(self) -> None:
        """Let threads that wait for room look whether there is some."""
        with self._room:
            self._room.notify_all()

    def _arm_timer(self) -> None:
        """Have one timer, for the key that expires first."""
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
        self.hub.off_peer_event(self._peer_event)
        with suppress(ValueError):
            self.hub.refusal_listeners.remove(self._note_refusal)
        self.hub.remove_receiver(self, kind=PackedType.COMMAND)
        self.stop_self()

    def on_end(self, reason: ExitReason, detail: str) -> None:
        """Release everything, also when the actor ends by itself or with its node."""
        self._close(StoreClosed(f"the store {self.name!r} ended: {detail or reason}"))
        if self._backend is not None:
            self._backend.close()
            # Before anybody hears of the end: the next master may come at once.
            self.hub.node.unregister(master_name(self.name))
        self._has_ended = True
        for future in self._end_waiters:
            future.set_result(None)

    def _close(self, error: StoreError) -> None:
        """Take no more commands: all that wait get the error."""
        if self.error is not None:
            return
        self.error = error
        questions, self._questions = self._questions, {}
        for future in questions.values():
            future.set_exception(error)
        for _, queue in self._watchers:
            queue.close()
        self._wake_writers()
        self._tell_idle(is_idle=False)
