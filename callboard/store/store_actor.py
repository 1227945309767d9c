"""The actor that runs the machine of a master or a clone on a node.

Commands of frontends are taken from the port in runs, commands of other nodes arrive from the
hub in runs; both become steps of the machine, whose effects are carried out in order. Effects
behind a `Persist` wait until the backend says that it is durable; later steps go on meanwhile,
and what they want to persist shares the next transaction.
"""

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from callboard.actors.dispatch import handler
from callboard.actors.future import Future
from callboard.actors.system_actor import SystemActor
from callboard.endpoint.machine.effect import Item, PeerEvent, PeerEventKind
from callboard.endpoint.machine.run import PackedType
from callboard.endpoint.machine.topic import STORE_EVENTS, clone_topic, master_topic
from callboard.model.errors import InvalidData
from callboard.store.backend.interface import StoreBackend
from callboard.store.errors import BackendFailure, MasterExists, StoreError
from callboard.store.machine.change import Change, event_data, event_of
from callboard.store.machine.clone import Clone
from callboard.store.machine.command import NIL, CommandRun, encode_run, read_run
from callboard.store.machine.master import Master
from callboard.store.machine.step import (
    Answer,
    EndpointLost,
    Occasion,
    Persist,
    ReportChanges,
    ReportRefused,
    Resign,
    SendRun,
    StoreEffect,
    StoreInput,
)
from callboard.store.port import DrainPort, IdleWanted, Port, SettleWanted

_LOG: Final = logging.getLogger("callboard.store")

#: Commands that one turn takes: the node's other actors have their turns too.
TURN_LENGTH: Final = 512

#: Commands on the way to clones, a master or a disk beyond which threads that write wait.
CONGESTION: Final = 16_384

#: Commands on the way below which they go on.
RELIEF: Final = CONGESTION // 2


@dataclass(frozen=True, slots=True)
class Arrived:
    """Commands came from other stores."""

    items: list[Item]


@dataclass(frozen=True, slots=True)
class Written:
    """A write is durable, or failed."""

    number: int
    rows: int
    failure: BackendFailure | None


@dataclass(frozen=True, slots=True)
class Detach:
    """End the store; the future is done when its backend is closed."""

    future: Future[None]


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


class CommandReceiver:
    """Takes runs of the hub, as mail for the actor."""

    def __init__(self, post: Callable[[object], None]) -> None:
        self._post = post

    def take(self, items: list[Item], /) -> None:
        """Take a run."""
        self._post(Arrived(items))


class StoreActor(SystemActor):
    """Runs a machine."""

    remote_methods = frozenset()

    def __init__(
        self,
        port: Port,
        make_machine: Callable[[float], Master | Clone],
        backend: StoreBackend | None,
    ) -> None:
        """Run a machine.

        Args:
            port: shared with the frontends.
            make_machine: makes the machine, at a time of the node's clock.
            backend: of a master; a clone has none.
        """
        self.port = port
        self._hub = port.hub
        self._now = self.runtime.now
        self.machine = port.machine = make_machine(self._now())
        port.post = self.post_self
        self._backend = backend
        self._interval = self.machine.options.tick_interval
        self._to_clones = clone_topic(port.name)
        self._to_masters = master_topic(port.name)
        self._events = f"{STORE_EVENTS}/{port.name}"
        #: Effects that wait for the backend, each with the number of the write before it.
        self._held: deque[tuple[int, StoreEffect]] = deque()
        self._written = 0
        self._durable = 0
        self._rows_under_way = 0
        #: When the first key expires, as far as there is a timer for it.
        self._timer: Any = None
        self._timer_at = 0.0
        self._idle_wanted: list[Future[bool]] = []
        self._settled_wanted: list[SettleWanted] = []
        self._leaving: Detach | None = None
        self._receiver = CommandReceiver(self.post_self)
        topic = self._to_clones if backend is None else self._to_masters
        self._hub.add_receiver(
            self._receiver, [topic], kind=PackedType.COMMAND, sees_own=True
        ).add_done_callback(self._subscribed)
        self._hub.on_peer_event(self._peer_event)
        self.after(self._interval, Occasion.TICK)
        self._arm_timer()

    # --- mail ---

    @handler
    def drain(self, _: DrainPort) -> None:
        """Take what frontends wrote, as one run."""
        port = self.port
        port.is_busy = True
        port.is_poked = False
        inputs = port.inputs
        count = min(len(inputs), TURN_LENGTH)
        take = inputs.popleft
        actions = [take() for _index in range(count)]
        if actions:
            self._look_for_watchers()
            self._carry_out(self.machine.local(actions, self._now()))
            self._look_around()
        port.is_busy = False
        if inputs and not port.is_poked:
            port.poke()
        self._look_for_congestion()

    def drain_all(self) -> None:
        """Take all that waits."""
        while self.port.inputs:
            self.drain(DrainPort())

    @handler
    def settled(self, wanted: SettleWanted) -> None:
        """Say that there is a copy to read, and that what was written is on its way."""
        self.drain_all()
        self._settled_wanted.append(wanted)
        self._look_around()

    @handler
    def idle_wanted(self, wanted: IdleWanted) -> None:
        """Say so when the store is idle."""
        self.drain_all()
        self._idle_wanted.append(wanted.future)
        self._look_for_idleness()

    @handler
    def arrived(self, arrived: Arrived) -> None:
        """Take commands of other stores."""
        self._look_for_watchers()
        now = self._now()
        for _, content in arrived.items:
            try:
                run = read_run(content)
            except InvalidData as error:
                name = self.port.name
                _LOG.warning("store %r was sent what is not a command: %s", name, error)
                continue
            self._carry_out(self.machine.receive(run, now))
        self._look_around()

    @handler
    def step(self, event: Occasion | EndpointLost) -> None:
        """Take a rare event."""
        if event is Occasion.TICK:
            self.after(self._interval, event)
        elif event is Occasion.KEY_EXPIRES:
            self._timer = None
        self._look_for_watchers()
        self._carry_out(self.machine.step(event, self._now()))
        self._look_around()

    @handler
    def written(self, written: Written) -> None:
        """A write is durable: go on with what waited for it."""
        self._rows_under_way -= written.rows
        if written.failure is None:
            self._release(written.number)
            return
        _LOG.error("the master of store %r ends: %s", self.port.name, written.failure)
        self._held.clear()
        self.stop_store(written.failure)

    @handler
    def detach(self, order: Detach) -> None:
        """End, when all that was written is durable."""
        self.drain_all()
        self.step(Occasion.LEAVE)
        self._leaving = order
        self._release(self._durable)

    def _peer_event(self, event: PeerEvent) -> None:
        """Hear of other endpoints, as the hub tells it: on the node's thread, in any turn."""
        happened: StoreInput
        if event.kind is PeerEventKind.PEER_DISCOVERED:
            happened = Occasion.ENDPOINT_FOUND
        elif event.kind is PeerEventKind.PEER_UNREACHABLE and event.endpoint is not None:
            happened = EndpointLost(event.endpoint)
        else:
            return
        self.post_self(happened)

    def _subscribed(self, _: Future[None]) -> None:
        """Begin: other endpoints know that there is a store here."""
        if self.port.error is None:
            self.step(Occasion.ENDPOINT_FOUND)

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
        post = self.post_self
        self._backend.write(changes, lambda failure: post(Written(number, rows, failure)))

    def _release(self, number: int) -> None:
        """Carry out what waited for a write."""
        self._durable = max(self._durable, number)
        held = self._held
        while held and held[0][0] <= self._durable:
            self._carry_out_one(held.popleft()[1])
        self._look_around()
        if self._leaving is not None and self._durable == self._written:
            self.stop_store(None)
            self._leaving.future.set_result(None)

    def _carry_out_one(self, effect: StoreEffect) -> None:
        """Carry out an effect that nothing holds back."""
        match effect:
            case SendRun(run, to_master):
                self._send(run, to_master=to_master)
            case Answer(request, value):
                self.port.answer(request, value)
            case ReportChanges(changes):
                self._tell(changes)
            case ReportRefused(count, reason):
                name = self.port.name
                self.runtime.report(CommandsRefused(name, count, reason))
                _LOG.warning("store %r: %d commands had no effect: %s", name, count, reason)
            case Resign():
                self._resign(effect)

    def _send(self, run: CommandRun, *, to_master: bool) -> None:
        """Send a run to one store, or to all masters or clones."""
        topic = self._to_masters if to_master else self._to_clones
        endpoint = run.receiver.endpoint.bytes if run.receiver else None
        self._hub.command(topic, encode_run(run), endpoint)

    def _tell(self, changes: list[Change]) -> None:
        """Tell watchers and the topic of store events what changed."""
        name = self.port.name
        if self.port.watchers:
            self.port.tell([event_of(name, change) for change in changes])
        if self._hub.wants(self._events):
            who = self.machine.author or NIL
            for change in changes:
                self._hub.deliver_here(self._events, event_data(name, change, who))

    def _resign(self, effect: Resign) -> None:
        """End after a partition: of two masters that meet, the smaller name stays."""
        if self.port.error is not None:
            return
        msg = (
            f"another master of the store {self.port.name!r} was made at {effect.rival} while "
            "it was out of reach; this one ends, what it holds is still in its backend"
        )
        _LOG.error(msg)
        self._carry_out(self.machine.step(Occasion.LEAVE, self._now()))
        self.stop_store(MasterExists(msg))

    # --- after each step ---

    def _look_around(self) -> None:
        """Look for what a step may have made true."""
        if self._settled_wanted and self.machine.has_copy:
            wanted, self._settled_wanted = self._settled_wanted, []
            for one in wanted:
                one.future.set_result(None)
        if self._idle_wanted:
            self._look_for_idleness()
        if self.port.is_congested:
            self._look_for_congestion()
        self._arm_timer()

    def _look_for_watchers(self) -> None:
        self.machine.wants_changes = bool(self.port.watchers) or self._hub.wants(self._events)

    def _look_for_idleness(self) -> None:
        """Tell those who wait for it that the store is idle, or work towards it."""
        is_durable = self._durable == self._written
        if is_durable and not self.port.inputs and self.machine.is_idle:
            wanted, self._idle_wanted = self._idle_wanted, []
            for future in wanted:
                future.set_result(True)
        else:
            self._idle_wanted = [one for one in self._idle_wanted if not one.done()]
            if self._idle_wanted:
                self._carry_out(self.machine.step(Occasion.HASTEN, self._now()))

    def _look_for_congestion(self) -> None:
        """Let threads that write wait while too much is on the way."""
        machine = self.machine
        # Without a master nobody waits: a clone keeps its writes, and refuses too many.
        unacknowledged = machine.unacknowledged if machine.is_connected else 0
        limit = RELIEF if self.port.is_congested else CONGESTION
        self.port.set_congested(max(unacknowledged, self._rows_under_way) > limit)

    def _arm_timer(self) -> None:
        """Have one timer, for the key that expires first."""
        due = self.machine.next_expiry
        if due is None or (self._timer is not None and self._timer_at <= due):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = due
        self._timer = self.after(max(due - self._now(), 0.0), Occasion.KEY_EXPIRES)

    # --- the end ---

    def stop_store(self, error: StoreError | None) -> None:
        """End the store and its actor."""
        self.port.close(error)
        for future in self._idle_wanted:
            future.set_result(False)
        self._idle_wanted = []
        self._hub.off_peer_event(self._peer_event)
        self._hub.remove_receiver(self._receiver, kind=PackedType.COMMAND)
        self.stop_self()
