"""What the actors of masters and clones have in common: they run a machine on a node.

Commands of frontends are taken from the port in runs, commands of other nodes arrive from the
hub in runs; both become steps of the machine, whose effects are carried out in order. Effects
behind a `Persist` wait until the backend says that it is durable; later steps go on meanwhile,
and what they want to persist shares the next transaction.
"""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from actors.actor import Actor
from actors.dispatch import handler
from actors.future import Future
from callboard.endpoint.core_effect import Item, PeerEvent, PeerEventKind
from callboard.endpoint.errors import InvalidData
from callboard.endpoint.message import MessageType
from callboard.endpoint.topic import STORE_EVENTS, clone_topic, master_topic
from callboard.store.action import Action
from callboard.store.command_cbor import CommandRun, encode_run, read_run
from callboard.store.effect import Answer, Effect, Persist, Refused, Tell, Transmit
from callboard.store.entity_id import NIL
from callboard.store.errors import StoreError
from callboard.store.port import Drain, IdleWanted, Port, Settled
from callboard.store.store_event import Change, event_data, event_of

if TYPE_CHECKING:
    from callboard.store.clone import Clone
    from callboard.store.master import Master

__all__ = ["CommandsRefused", "StoreActor"]

log = logging.getLogger("callboard.store")

TURN_LENGTH: Final = 512
"""Commands that one turn takes: the node's other actors have their turns too."""

CONGESTION: Final = 16_384
"""Commands on the way to clones, a master or a disk beyond which threads that write wait."""

RELIEF: Final = CONGESTION // 2
"""Commands on the way below which they go on."""


class Tick:
    """One tick is over."""


@dataclass(frozen=True, slots=True)
class Arrived:
    """Commands came from other stores."""

    items: list[Item]


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


class Intake:
    """Takes runs of the hub, as mail for the actor."""

    def __init__(self, post: Callable[[object, None], None]) -> None:
        self._post = post

    def take(self, items: list[Item], /) -> None:
        """Take a run."""
        self._post(Arrived(items), None)


class StoreActor(Actor):
    """Runs a machine."""

    remote_methods = frozenset()

    def __init__(self, port: Port, machine: "Master | Clone", topic: str) -> None:
        self.port = port
        self.machine = machine
        port.machine = machine
        port.post = self._cell.post
        self._hub = port.hub
        self._now = self._cell.runner.now
        self._interval = machine.options.tick_interval
        self._to_clones = clone_topic(port.name)
        self._to_masters = master_topic(port.name)
        self._events = f"{STORE_EVENTS}/{port.name}"
        #: Effects that wait for the backend, each with the number of the write before it.
        self._held: deque[tuple[int, Effect]] = deque()
        self._written = 0
        self._durable = 0
        self._idle_wanted: list[Future[bool]] = []
        self._leaving: Detach | None = None
        self._intake = Intake(self._cell.post)
        self._hub.add_receiver(
            self._intake, [topic], kind=MessageType.COMMAND, sees_own=True
        ).add_done_callback(self._subscribed)
        self._hub.on_peer_event(self._peer_event)
        self.after(self._interval, Tick())

    # --- mail ---

    @handler
    def drain(self, _: Drain) -> None:
        """Take what frontends wrote, as one run."""
        port = self.port
        port.is_busy = True
        port.is_poked = False
        inputs = port.inputs
        count = min(len(inputs), TURN_LENGTH)
        take = inputs.popleft
        actions: list[Action] = [take() for _index in range(count)]
        if actions:
            self._step(self._local(actions))
        port.is_busy = False
        if inputs and not port.is_poked:
            port.poke()
        self._look_for_congestion()

    def _local(self, actions: Sequence[Action]) -> list[Effect]:
        self._look_for_watchers()
        return self.machine.local(actions, self._now())

    def drain_all(self) -> None:
        """Take all that waits."""
        while self.port.inputs:
            self.drain(Drain())

    @handler
    def settled(self, wanted: Settled) -> None:
        """Say that what was written can be read."""
        self.drain_all()
        wanted.future.set_result(None)

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
                log.warning("store %r was sent what is no command: %s", self.port.name, error)
                continue
            self._carry_out(self.machine.receive(run, now))
        self._look_around()

    @handler
    def tick(self, again: Tick) -> None:
        """Let a tick pass."""
        self.after(self._interval, again)
        self._look_for_watchers()
        self._step(self.machine.tick(self._now()))

    @handler
    def peer_event(self, event: PeerEvent) -> None:
        """Something about other endpoints."""
        if event.kind is PeerEventKind.PEER_DISCOVERED:
            self._step(self._greet())
        elif event.kind is PeerEventKind.PEER_UNREACHABLE and event.endpoint is not None:
            self._step(self._lose(event.endpoint))

    @handler
    def detach(self, order: Detach) -> None:
        """End, when all that was written is durable."""
        self.drain_all()
        self._step(self.machine.leave(self._now()))
        self._leaving = order
        self.release(self._durable)

    def _peer_event(self, event: PeerEvent) -> None:
        if event.kind in (PeerEventKind.PEER_DISCOVERED, PeerEventKind.PEER_UNREACHABLE):
            self._cell.post(event, None)

    def _subscribed(self, _: Future[None]) -> None:
        """Begin: other endpoints know that there is a store here."""
        if self.port.error is None:
            self.peer_event(PeerEvent(PeerEventKind.PEER_DISCOVERED, None))

    def _greet(self) -> list[Effect]:
        raise NotImplementedError

    def _lose(self, endpoint: bytes) -> list[Effect]:
        raise NotImplementedError

    # --- effects ---

    def _step(self, effects: list[Effect]) -> None:
        self._carry_out(effects)
        self._look_around()

    def _look_around(self) -> None:
        if self._idle_wanted:
            self._look_for_idleness()
        if self.port.is_congested:
            self._look_for_congestion()

    def _carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Persist):
                self._written += 1
                self._persist(effect, self._written)
            elif self._durable < self._written:
                self._held.append((self._written, effect))
            else:
                self._carry_out_one(effect)

    def _persist(self, changes: Persist, number: int) -> None:
        raise NotImplementedError

    def release(self, number: int) -> None:
        """Carry out what waited for a write."""
        self._durable = max(self._durable, number)
        held = self._held
        while held and held[0][0] <= self._durable:
            self._carry_out_one(held.popleft()[1])
        self._look_around()
        if self._leaving is not None and self._durable == self._written:
            self.stop_store(None)
            self._leaving.future.set_result(None)

    def _carry_out_one(self, effect: Effect) -> None:
        match effect:
            case Transmit():
                self._transmit(effect.run, to_master=effect.to_master)
            case Answer():
                self.port.answer(effect.request, effect.value)
            case Tell():
                self._tell(effect.changes)
            case Refused():
                refused = CommandsRefused(self.port.name, effect.count, effect.reason)
                self._cell.runtime.emit(refused)
                log.warning(
                    "store %r: %d commands had no effect: %s",
                    self.port.name,
                    effect.count,
                    effect.reason,
                )

    def _transmit(self, run: CommandRun, *, to_master: bool) -> None:
        topic = self._to_masters if to_master else self._to_clones
        endpoint = run.receiver.endpoint.bytes if run.receiver else None
        self._hub.command(topic, encode_run(run), endpoint)

    def _look_for_watchers(self) -> None:
        self.machine.wants_changes = bool(self.port.watchers) or self._hub.wants(self._events)

    def _tell(self, changes: list[Change]) -> None:
        name = self.port.name
        if self.port.watchers:
            self.port.tell([event_of(name, change) for change in changes])
        if self._hub.wants(self._events):
            who = self.machine.author or NIL
            for change in changes:
                self._hub.deliver_here(self._events, event_data(name, change, who))

    # --- idleness and congestion ---

    def _is_idle(self) -> bool:
        is_durable = self._durable == self._written
        return is_durable and not self.port.inputs and self.machine.is_idle

    def _look_for_idleness(self) -> None:
        if self._is_idle():
            wanted, self._idle_wanted = self._idle_wanted, []
            for future in wanted:
                future.set_result(True)
        else:
            self._idle_wanted = [one for one in self._idle_wanted if not one.done()]
            if self._idle_wanted:
                self._carry_out(self.machine.hasten(self._now()))

    def _look_for_congestion(self) -> None:
        waiting = self._on_the_way()
        limit = RELIEF if self.port.is_congested else CONGESTION
        self.port.set_congested(waiting > limit)

    def _on_the_way(self) -> int:
        """Return how many commands are on the way."""
        raise NotImplementedError

    # --- the end ---

    def stop_store(self, error: StoreError | None) -> None:
        """End the store and its actor."""
        self.port.close(error)
        for future in self._idle_wanted:
            future.set_result(False)
        self._idle_wanted = []
        self._hub.off_peer_event(self._peer_event)
        self._hub.remove_receiver(self._intake, kind=MessageType.COMMAND)
        self.stop_self()
