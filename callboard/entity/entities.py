"""The entities of a node: hosted types, routes to other nodes, inspection, journals."""

import threading
from collections import Counter, deque
from collections.abc import Callable, Container, Coroutine, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar
from urllib.parse import urlsplit

from callboard import locks
from callboard.entity.cell import DeferredBatchReply, EntityCell
from callboard.entity.entity import (
    Entity,
    EntityType,
    checked_key,
    stored_name,
    type_name,
)
from callboard.entity.errors import DuplicateEntityType, NeedsLeases
from callboard.entity.event_json import EventSerializer
from callboard.entity.host import EntityHost, HostedType, HostNode, ignore
from callboard.entity.inspection.events import EntityTypeHosted
from callboard.entity.inspection.figures import EntityStats
from callboard.entity.journal.entry import Entry, EntryDecoder
from callboard.entity.journal.growth import JournalGrowth
from callboard.entity.journal.journal import Journal, checked_reader
from callboard.entity.machine.ballot_machine import BALLOT_SECONDS
from callboard.entity.machine.table import SLOTS, SharedState, Table, TableMember, slot_of
from callboard.entity.messages import (
    AskEntityTable,
    AskVote,
    EntityMarker,
    EntityMessage,
    EntityMessages,
    EntityTable,
    FollowJournal,
    JournalGrew,
    MoveSlots,
    NotOwner,
    StopEntity,
)
from callboard.entity.ownership import (
    POLL_SECONDS,
    MoveTurns,
    Ownership,
    OwnershipHooks,
    called,
    wrong_state,
)
from callboard.entity.reentrancy import would_deadlock
from callboard.entity.reference import EntityRef
from callboard.entity.reminders import ParkedReminder
from callboard.entity.router import PendingMessage, TypeRouter
from callboard.entity.state.backends import open_leases, open_state, open_view
from callboard.entity.state.client import StateClient, ThreadedStateClient
from callboard.entity.state.interface import EntityState, StoredEvent
from callboard.entity.unpersisted import is_wanted
from callboard.kernel.access import NamedRight, Rights
from callboard.kernel.activation import (
    CARRIED_ASKED,
    CARRIED_URGENT,
    CHAIN_LIMIT,
    KEY_LIMIT,
    NO_DEADLINE,
    QUEUE_PREFIX,
    Carried,
    Encoded,
    Envelope,
    Home,
    handler_frame,
    is_key,
    is_type_name,
)
from callboard.kernel.actors import ActorRef, handler
from callboard.kernel.checks import count as checked_count
from callboard.kernel.checks import require
from callboard.kernel.codec import (
    MalformedPayload,
    PayloadCodec,
    RemoteProtocolError,
    RunsUserCode,
)
from callboard.kernel.context import NodeContext, SystemActor
from callboard.kernel.errors import NotPermitted, WrongValue, remote_error
from callboard.kernel.events import NodeDown, NodeUp
from callboard.kernel.reply import Future, MessageSender, Sender
from callboard.kernel.shutdown import Deadline
from callboard.kernel.topology import ENTITIES, Topology
from callboard.kernel.tracing import INSTRUMENTATION
from callboard.lease.driver import LeaseDriver, LeaseLoop, LeaseNews, LeasePlace, LeaseThread
from callboard.lease.errors import (
    LeaseLost,
    OutcomeUnknown,
    StateCorrupt,
    StateVersion,
    StorageError,
)
from callboard.lease.machine.lease_machine import (
    HolderGone,
    LeaseHeld,
    LeaseKilled,
    LeaseMachine,
)
from callboard.support.inspection_tables import Row
from callboard.support.text import class_name, error_text, safe_repr

if TYPE_CHECKING:
    from callboard.entity.queue.work_queue import WorkQueue

T = TypeVar("T")

#: Latest events of one entity in the inspection table.
ROWS_OF_EVENTS: Final = 1_000

#: Seconds that other nodes have to answer which table they know, before this node hosts a type.
ASK_SECONDS: Final = 1.0

#: Types that a node routes to for leaves; a leaf may name any type that its rights match.
TYPES_LIMIT: Final = 1_000

#: Opens the state or leases of a URL for a writer.
Opener = Callable[[str, str], Any]


class RemoteSender(MessageSender):
    """An actor on another node that sent a message with `tell`."""

    __slots__ = ("_ref",)

    expects: Final = False
    deadline: Final = None

    def __init__(self, ref: ActorRef[Any] | None) -> None:
        self._ref = ref

    def reference(self, _: Home) -> ActorRef[Any] | None:
        """Return the ref of the actor."""
        return self._ref


class ArrivedMessage(NamedTuple):
    """A message of another node for an entity."""

    type_name: str
    key: str
    message: Any
    sender: Any
    is_urgent: bool


def _invalid_key(key: object) -> WrongValue:
    """Return the error of a message with an invalid key."""
    limits = f"1 to {KEY_LIMIT} bytes in UTF-8 and no NUL"
    return WrongValue(f"a key must have {limits}, not {safe_repr(key):.80}")


class EntityServer(SystemActor):
    """Receives messages of other nodes for entities of this node.

    A message may come from a program that is not callboard, so each field is checked. A leaf
    may do what its rights `entities` and `host` name. It knows no other members, so this node
    acts as the owner of all slots to it, and routes its messages to the real owners.
    """

    def __init__(self, entities: "Entities") -> None:
        """Serve the entities of a node."""
        self._entities = entities

    @handler
    def on_message(self, msg: EntityMessage) -> NotOwner | None:
        """Post a message to its entity, or refuse it if this node is not the owner."""
        cell: Any = self.context
        entities, key, asker = self._entities, msg.key, cell.sender
        is_leaf = entities.overlay.rights(cell.sender_node) is not None
        # An active entity has a valid name and key, so the checks are skipped for it.
        if is_leaf or not entities.has_active(msg.type_name, key):
            if self._refuses(msg.type_name, ("entities",)):
                return None
            if not is_key(key):
                self._refuse(_invalid_key(key))
                return None
        is_asked = msg.is_asked is True
        if is_asked:
            if asker is None or not asker.expects:
                return None
            # Not kept as a promise: the entity answers, even if this actor has ended by then.
            cell.promised = asker
            asker.mark_handled()
        trace, chain = INSTRUMENTATION.current(), INSTRUMENTATION.chain.get()
        message = Envelope(msg.message, trace, chain=chain) if trace or chain else msg.message
        sender: Any = asker
        if not is_asked:
            sender = RemoteSender(msg.sender if isinstance(msg.sender, ActorRef) else None)
        arrived = ArrivedMessage(msg.type_name, key, message, sender, msg.is_urgent is True)
        if is_leaf:
            refusal = entities.bring(arrived)
        else:
            attempt = msg.attempt if type(msg.attempt) is int else 0
            refusal = entities.deliver(arrived, cell.sender_node, attempt)
        if refusal is not None and is_asked:
            asker.set_result(refusal)
        return refusal

    @handler
    def on_messages(self, msg: EntityMessages) -> None:
        """Post the messages of a batch to their entities."""
        cell: Any = self.context
        carrier = cell.sender
        if carrier is None or not carrier.expects:
            return
        if self._refuses(msg.type_name, ("entities",)):
            return
        if self._rights() is not None:
            self._refuse(NotPermitted("a node with limited rights sends messages one by one"))
            return
        try:
            messages = msg.each()
        except MalformedPayload as error:
            self._refuse(error)
            return
        count = getattr(carrier, "count", 1)
        if count != len(messages) or not hasattr(carrier, "carried"):
            text = (
                f"a batch of {len(messages):,} messages for entities was counted as {count:,}"
            )
            self._refuse(MalformedPayload(text))
            return
        cell.promised = carrier  # each message is answered on its own
        carrier.mark_handled()
        post, now = self._entities.carried(msg.type_name, carrier, cell), cell.runner.now()
        for carried in messages:
            left, deadline = carried[4], None
            if left != NO_DEADLINE:
                INSTRUMENTATION.used = True
                deadline = now + left / 1000
            deferred = DeferredBatchReply(carrier, carried[0], deadline)
            try:
                post(carried, deferred)
            except Exception as error:  # noqa: BLE001 - the other messages are handled
                deferred.inner.set_exception(remote_error(error))
                text = f"{class_name(error)}: {error_text(error)}"
                self._entities.runtime.note_failure(cell, text, error)

    @handler
    def on_ask(self, msg: AskEntityTable) -> EntityTable | None:
        """Answer with the table of a type."""
        if self._refuses(msg.type_name, ("entities", "host")):
            return None
        rights = self._rights()
        if rights is None or rights.permit("host", msg.type_name):
            return self._entities.table(msg.type_name, self.context.sender)
        return self._entities.table_for_leaf(msg.type_name)

    @handler
    def on_table(self, msg: EntityTable) -> None:
        """Handle a newer table."""
        if not self._refuses(msg.type_name, ("host",)):
            self._entities.receive_table(msg)

    @handler
    def on_vote(self, msg: AskVote) -> bool | None:
        """Vote whether a member is unreachable."""
        if self._refuses(msg.type_name, ("host",)) or type(msg.writer) is not str:
            return None
        return self._entities.vote(msg.type_name, msg.writer)

    @handler
    def on_marker(self, msg: EntityMarker) -> None:
        """Answer when everything that was sent before was accepted or refused."""
        if self._refuses(msg.type_name, ("entities",)):
            return
        if type(msg.slot) is not int or not 0 <= msg.slot < SLOTS:
            text = f"slot {safe_repr(msg.slot):.80} must be a number from 0 to {SLOTS - 1}"
            self._refuse(WrongValue(text))
            return
        promise = self.promise()
        if msg.is_refused is True:
            promise.set_result(None)
            return
        passed = partial(promise.set_result, None)
        self._entities.marker(msg, passed, is_leaf=self._rights() is not None)

    @handler
    def on_follow(self, msg: FollowJournal) -> EntityTable | None:
        """Notify the asking node from now on when the journal of a type grows."""
        if self._refuses(msg.type_name, ("entities", "host")):
            return None
        rights = self._rights()
        is_member = rights is None or rights.permit("host", msg.type_name)
        return self._entities.followed(msg.type_name, self._peer(), is_leaf=not is_member)

    @handler
    def on_grew(self, msg: JournalGrew) -> None:
        """Wake the followers of a journal."""
        if not self._refuses(msg.type_name, ("host",)):
            self._entities.growth.wake(msg.type_name)

    @handler
    def on_move(self, msg: MoveSlots) -> None:
        """Move slots to another host."""
        if self._refuses(msg.type_name, ("host",)):
            return
        try:
            self._entities.move(msg)
        except WrongValue as error:
            self._refuse(error)

    @handler
    def on_stop(self, msg: StopEntity) -> None:
        """Passivate an entity."""
        if not self._refuses(msg.type_name, ("entities",)) and is_key(msg.key):
            self._entities.passivate_here(msg.type_name, msg.key)

    def _rights(self) -> Rights | None:
        """Return the rights of the sender; None for a full member."""
        return self._entities.overlay.rights(self._peer())

    def _peer(self) -> bytes:
        """Return the node of the sender."""
        return self.context.sender_node

    def _refuses(self, type_name: object, rights: Sequence[NamedRight]) -> bool:
        """Refuse a message with an invalid type name, or without any of some rights.

        Returns:
            Whether the message was refused; it is answered then.
        """
        if not is_type_name(type_name):
            text = f"{safe_repr(type_name):.80} is not the name of an entity type"
            self._refuse(WrongValue(text))
            return True
        name, permitted = str(type_name), self._rights()
        if permitted is None or any(permitted.permit(right, name) for right in rights):
            return False
        self._entities.overlay.refused(self._peer(), rights[0], name)
        text = f"no right {rights[0]!r} for {name!r} at {self.node.name}"
        self._refuse(NotPermitted(text))
        return True

    def _refuse(self, error: BaseException) -> None:
        """Answer with an error; an exception would end this actor."""
        self.promise().set_exception(error)


class Entities:
    """The entity types of a node: hosting, routing, inspection, and shutdown."""

    def __init__(
        self,
        runtime: NodeContext,
        runner: Any,
        codec: PayloadCodec,
        overlay: Topology,
        start: Callable[[Coroutine[Any, Any, Any]], Future[Any]],
        wait: Callable[[Coroutine[Any, Any, Any]], Any],
    ) -> None:
        """Create the registry of a node, with no types.

        Args:
            runtime: of the node.
            runner: of the node.
            codec: serializer of messages.
            overlay: knows the reachable nodes.
            start: runs a coroutine on the node's loop.
            wait: runs a coroutine to its end, for a thread that may block.
        """
        self.start, self.wait = start, wait
        #: Notifies followers of journals.
        self.growth = JournalGrowth(runtime, overlay.nodes)
        self.runtime: Any = runtime
        self._runner = runner
        #: Serializer of events and jobs.
        self.form = EventSerializer(codec)
        self.overlay, self._start = overlay, start
        self._hosts: dict[str, EntityHost] = {}
        self._owned: dict[str, Ownership] = {}
        self.hosted: Container[str] = self._hosts.keys()
        self._routers: dict[str, TypeRouter] = {}
        self._turns = MoveTurns()
        #: By type: nodes that have requested its table.
        self._askers: dict[str, set[bytes]] = {}
        #: Clients of states and leases, by URL.
        self._states: dict[str, StateClient] = {}
        self._leases: dict[str, Any] = {}
        #: Read-only clients of states, for journals, by URL.
        self._views: dict[str, StateClient] = {}
        #: By hosted type: the URL of its state.
        self._urls: dict[str, str | None] = {}
        #: This node's leases, and their valid terms, by URL.
        self._held: dict[str, LeaseDriver] = {}
        self._terms: dict[str, int] = {}
        #: By type: the URL of the register with its table.
        self._registers: dict[str, str] = {}
        #: By node and type: the latest refused attempt for each slot.
        self._refused: dict[tuple[bytes, str], dict[int, int]] = {}
        self._stop_listening: Callable[[], object] | None = None
        #: Clients that are being opened, by their table and URL.
        self._opening: dict[tuple[int, str], Future[Any]] = {}
        self._joining: set[str] = set()
        self._queues: dict[str, WorkQueue] = {}
        #: By type of a singleton: the arguments that it is hosted with.
        self._hosted_as: dict[str, Any] = {}
        self._lock = locks.lock("entities of a node", 510)
        #: The name of this node's life in fences and in the table.
        self.writer = f"{runtime.node_id.hex()}-{runner.random.getrandbits(32):08x}"
        self._host_node = HostNode(
            runtime,
            runner,
            self.writer,
            self.form,
            self._ref,
            self._send_back,
            is_checked=is_wanted(runner),
        )
        INSTRUMENTATION.used = True  # cells of entities have outboxes
        overlay.add_table("entities", self._rows)
        overlay.add_table("entity_slots", self._slot_rows)
        overlay.add_table("entity_cells", self._cell_rows)
        overlay.add_table("entity_events", self._event_rows)
        runtime.start_actor(EntityServer, (self,), number=ENTITIES)

    # --- hosting ---

    async def host(
        self,
        cls: type[Entity],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        state: str | None,
        leases: str | None,
    ) -> None:
        """Host entities of a class on this node; returns when the node is a member.

        Raises:
            DuplicateEntityType: this node hosts a class of that name already.
            NeedsLeases: another node hosts the type, and `leases` is missing.
            StorageError: the state cannot be opened.
        """
        await self._host(cls, (args, kwargs), (state, leases), ignore)

    async def _host(
        self,
        cls: type[Entity],
        arguments: tuple[tuple[Any, ...], dict[str, Any]],
        urls: tuple[str | None, str | None],
        on_ended: Callable[[EntityCell], object],
    ) -> None:
        """Host a class; `urls` are of its state and leases."""
        name, kind = type_name(cls), EntityType(cls)
        for argument, url in zip(("state", "leases"), urls, strict=True):
            is_url = isinstance(url, str | None)
            require(is_url, f"{argument} is a text such as 'sqlite:shop.db'", url)
        with self._lock:
            if name in self._joining:
                msg = (
                    f"{name} is hosted on {self.runtime.name} already; set `name` of the class "
                    "to host another type"
                )
                raise DuplicateEntityType(msg)
            self._joining.add(name)
        try:
            await self._join(name, kind, arguments, urls, on_ended)
            self.runtime.report(EntityTypeHosted(name, place_of(urls[0])))
        except BaseException:
            self._joining.discard(name)
            self._hosts.pop(name, None)
            self._owned.pop(name, None)
            raise

    async def singleton(
        self,
        cls: type[Entity],
        key: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        state: str | None,
        leases: str | None,
    ) -> EntityRef[Any]:
        """Host a class unless it is hosted, and keep the entity of a key active.

        Raises:
            DuplicateEntityType: this node hosts another class of that name, or this one with
                other arguments.
            NeedsLeases: another node hosts the type, and `leases` is missing.
            StorageError: the state cannot be opened.
        """
        ref = self.entity(cls, checked_key(key))
        name, options = type_name(cls), (cls, args, kwargs, state, leases)
        if self._hosted_as.get(name) != options:
            await self.host(cls, args, kwargs, state, leases)
            self._hosted_as[name] = options
        self._hosts[name].singletons.add(key)
        return ref

    async def host_queue(
        self, name: str, state: str, leases: str | None, attempts: int, limit: int
    ) -> None:
        """Host a work queue on this node.

        Raises:
            DuplicateEntityType: this node hosts it with another state, or other limits.
            StorageError: the state cannot be opened.
            WrongArgument: the name is not a text.
            WrongValue: the name is empty, too long, or has spaces or slashes.
        """
        from callboard.entity.queue.queue_entity import QueueDesk, checked_queue, queue_class

        cls, options = queue_class(checked_queue(name)), (state, leases, attempts, limit)
        if self._hosted_as.get(cls.name) == options:
            return
        desk = QueueDesk(attempts, limit)
        await self._host(cls, ((desk,), {}), (state, leases), desk.left)
        self._hosted_as[cls.name] = options
        self._hosts[cls.name].singletons.add(name)

    def queue(self, name: str) -> "WorkQueue":
        """Return a work queue of any owner.

        Raises:
            WrongArgument: the name is not a text.
            WrongValue: the name is empty, too long, or has spaces or slashes.
        """
        from callboard.entity.queue.queue_entity import checked_queue
        from callboard.entity.queue.work_queue import WorkQueue

        owner = self._ref(QUEUE_PREFIX + checked_queue(name), name)
        with self._lock:
            if name not in self._queues:
                self._queues[name] = WorkQueue(self, owner, name)
            return self._queues[name]

    async def _join(
        self,
        name: str,
        kind: EntityType,
        arguments: tuple[tuple[Any, ...], dict[str, Any]],
        urls: tuple[str | None, str | None],
        on_ended: Callable[[EntityCell], object],
    ) -> None:
        """Create the host of a type, and join its table."""
        state, leases = urls[0], urls[1] or urls[0]
        client = await self._open(self._states, state, open_state)
        router, on_growth = self._router(name), partial(self.growth.record, name)
        hosted = HostedType(kind, arguments, client, on_growth, on_ended)
        self._urls[name] = state
        register = await self._open(self._leases, leases, self._open_leases)
        if register is None:
            host = EntityHost(self._host_node, hosted, router)
            await self._refuse_second(name)
            host.serve(dict.fromkeys(range(SLOTS), 1))
            self._hosts[name] = host
            router.flush()
            return
        ask_vote = partial(self._ask_vote, name)
        settle = partial(self._settle, name)
        adopted = partial(self._adopted, name)
        hooks = OwnershipHooks(adopted, ask_vote, settle, self._turns)
        assert leases is not None, "a register has a URL"
        lease = self._held[leases]
        owned = Ownership(self._host_node, hosted, router, register, lease, hooks)
        shared = SharedState()
        if client is not None:
            shared = SharedState(*await called(client, EntityState.identity))
            owned.host.reminders.set_clock(await called(client, EntityState.clock))
        await self._refuse_other_state(name, shared)
        self._hosts[name], self._owned[name] = owned.host, owned
        self._registers[name] = leases
        if self._stop_listening is None:
            self._stop_listening = self.runtime.listen(self._on_event)
        if leases in self._terms:
            owned.begin_term(self._terms[leases])
        try:
            await owned.join(shared)
        except BaseException:
            owned.abandon()
            raise
        self.runtime.call_later(POLL_SECONDS, self._poll, owned)

    async def _open(self, opened: dict[str, Any], url: str | None, opener: Opener) -> Any:
        """Return the client of a state or register, opened once for the node."""
        if url is None:
            return None
        if url not in opened and (model := self._runner.databases) is not None:
            opened[url] = model(url).client(self.writer, self._runner)
            if opened is self._leases:
                self._hold_lease(url, LeaseLoop(opened[url], self.runtime))
        if url not in opened:
            # Two connections of one life at a register would take over each other's lock.
            place = id(opened), url
            future = self._opening.get(place)
            if future is None:
                future = self._opening[place] = self._open_on_thread(opener, url)
            try:
                target = await future
            finally:
                self._opening.pop(place, None)
            if url not in opened:
                opened[url] = ThreadedStateClient(target, self.runtime.post)
        return opened[url]

    def _open_on_thread(self, opener: Opener, url: str) -> Future[Any]:
        """Open a state or a register on a thread."""
        future: Future[Any] = Future()

        def run() -> None:
            try:
                future.set_result(opener(url, self.writer))
            except BaseException as error:  # noqa: BLE001 - raised where the future is awaited
                future.set_exception(error)

        threading.Thread(target=run, name="callboard-open", daemon=True).start()
        return future

    def _open_leases(self, url: str, writer: str) -> Any:
        """Open a register, and start to hold a lease there; may block."""
        leases = open_leases(url, writer)
        try:
            self._hold_lease(url, LeaseThread(leases.again(), self.runtime.name))
        except BaseException:
            leases.close()
            raise
        return leases

    def _hold_lease(self, url: str, place: LeasePlace) -> None:
        """Start to hold this node's lease in a register."""

        def notify(news: LeaseNews) -> None:
            self.runtime.post(self._handle_news, url, news)

        machine = LeaseMachine(self.writer)
        self._held[url] = LeaseDriver(place, machine, notify, running=self._running)
        self._held[url].start()

    def _running(self) -> str:
        """Return the handler that blocks this node's thread; empty if none does."""
        frame = handler_frame(self._runner.holder or 0)
        return "" if frame is None else frame.f_code.co_qualname

    def _of_register(self, url: str) -> list[Ownership]:
        """Return the ownerships of types whose tables are in a register."""
        ownerships = self._owned.items()
        return [owned for name, owned in ownerships if self._registers[name] == url]

    def _handle_news(self, url: str, news: LeaseNews) -> None:
        """Handle a change of this node's lease, or the end of another node's lease."""
        ownerships = self._of_register(url)
        match news:
            case LeaseHeld(term):
                self._terms[url] = term
                for owned in ownerships:
                    owned.begin_term(term)
            case LeaseKilled(by):
                self._terms.pop(url, None)
                for owned in ownerships:
                    owned.end_term()
                cause = f"killed by {by}: it was silent" if by else "removed from its register"
                text = f"the lease of {self.runtime.name} was {cause}"
                self.runtime.warn_once(("lease killed", url), text)
                self._held[url].begin_anew()
            case HolderGone(writer, number):
                for owned in ownerships:
                    owned.holder_gone(writer, number)
            case LeaseLost():
                self.runtime.warn_once(("lease lost", url, news.handler), str(news))

    def _on_event(self, event: object) -> None:
        """Handle events of nodes; on any thread."""
        if isinstance(event, NodeDown | NodeUp):
            self.runtime.post(self._node_changed, event)

    def _node_changed(self, event: NodeDown | NodeUp) -> None:
        """Forget refusals of a lost node, and probe for the death of its members."""
        if isinstance(event, NodeDown):
            lost = [source for source in self._refused if source[0] == event.node_id]
            for source in lost:
                del self._refused[source]
        for owned in list(self._owned.values()):
            if isinstance(event, NodeDown):
                owned.node_down(event.node_id)
            else:
                owned.node_up(event.node_id)

    def _ask_vote(self, name: str, node: bytes, writer: str) -> Future[Any]:
        """Ask a node whether it cannot reach a member."""
        answer: Future[Any] = self.runtime.ref_of(node, ENTITIES).ask(
            AskVote(name, writer), timeout=BALLOT_SECONDS
        )
        return answer

    def _settle(self, name: str, slots: Iterable[int], settled: Callable[[], object]) -> None:
        """Call back when all messages that other members forwarded for some slots arrived."""
        nodes = {bytes.fromhex(node) for node in self._owned[name].table.nodes}
        nodes.discard(self.runtime.node_id)
        reachable = [node for node in nodes if self.runtime.is_reachable(node)]
        self._router(name).ask_markers(slots, reachable, settled)

    def vote(self, name: str, writer: str) -> bool | None:
        """Return whether a member is unreachable; None if this node is not a member."""
        owned = self._owned.get(name)
        return None if owned is None else owned.vote(writer)

    async def _refuse_second(self, name: str) -> None:
        """Refuse to host a type without leases that another node hosts.

        Raises:
            NeedsLeases: another node hosts the type.
        """
        if await self._tables_elsewhere(name):
            msg = (
                f"{name} is hosted by another node, and without leases both would own all its "
                'slots; give both nodes state="…", or leases="…"'
            )
            raise NeedsLeases(msg)

    async def _refuse_other_state(self, name: str, own: SharedState) -> None:
        """Refuse to host a type that reachable nodes host with another state.

        Raises:
            WrongState: a reachable node does.
        """
        for table in await self._tables_elsewhere(name):
            if table.members and table.state[::2] != own[::2]:  # the id and the boot id
                raise wrong_state(name, own, table)

    async def _tables_elsewhere(self, name: str) -> list[Table]:
        """Return the tables of a type that reachable nodes know."""
        asks = [
            self.runtime.ref_of(node, ENTITIES).ask(AskEntityTable(name), timeout=ASK_SECONDS)
            for node in self._hosting_nodes(name)()
        ]
        tables = []
        for ask in asks:
            try:
                table = await ask
            except Exception:  # noqa: BLE001, S112 - the node hosts nothing
                continue
            if isinstance(table, EntityTable) and table.is_sound:
                with suppress(StateCorrupt, StateVersion):
                    tables.append(Table.read(table.text))
        return tables

    def _poll(self, owned: Ownership) -> None:
        """Poll the membership of a type, and schedule the next poll."""
        if owned.is_closed or self.runtime.is_closed:
            return
        owned.poll()
        self.runtime.call_later(POLL_SECONDS, self._poll, owned)

    def _adopted(self, name: str, table: Table) -> None:
        """Adopt a newer table, and send it to members and to nodes that requested it."""
        url = self._registers[name]
        ownerships = self._of_register(url)
        self._held[url].watch(
            {writer for owned in ownerships for writer in owned.table.members}
        )
        self._router(name).adopt(table, is_certain=True)
        announcement = EntityTable(name, table.version, table.text())
        nodes = {bytes.fromhex(node) for node in table.nodes} | self._askers.get(name, set())
        for node in sorted(nodes - {self.runtime.node_id}):  # sorted for simulations
            if self.runtime.is_reachable(node):
                self.runtime.ref_of(node, ENTITIES).tell(announcement)

    # --- messages ---

    def entity(self, cls: object, key: str) -> EntityRef[Any]:
        """Return the ref of an entity.

        Raises:
            WrongArgument: `cls` is not an entity class, or `key` is not a text.
            WrongValue: the key is empty or too long.
        """
        name = stored_name(cls) if isinstance(cls, str) and cls else type_name(cls)
        return EntityRef(self.runtime, self, name, checked_key(key))

    def _ref(self, name: str, key: str) -> EntityRef[Any]:
        """Return the ref of a valid key."""
        return EntityRef(self.runtime, self, name, key)

    def route(
        self, type_name: str, key: str, message: Any, sender: Sender | None, *, is_urgent: bool
    ) -> None:
        """Send a message to an entity; from any thread, never blocks."""
        is_long = message.__class__ is Envelope and len(message.chain) >= CHAIN_LIMIT
        if is_long and sender is not None and sender.expects:
            sender.set_exception(would_deadlock(message.chain, f"{type_name}/{key}"))
            return
        slot = slot_of(key)
        host = self._hosts.get(type_name)
        router = self._routers.get(type_name) or self._router(type_name)
        if (
            host is None
            or router.is_waiting(slot)
            or not host.deliver(key, message, sender, is_urgent=is_urgent)
        ):
            router.send(key, slot, message, sender, is_urgent=is_urgent)

    def _router(self, name: str) -> TypeRouter:
        """Return the router of a type, made on first use."""
        router = self._routers.get(name)
        if router is None:
            deliver = partial(self._deliver_here, name)
            is_host = partial(self._hosts.__contains__, name)
            nodes = self._hosting_nodes(name)
            router = TypeRouter(self.runtime, name, deliver, nodes, is_host)
            router = self._routers.setdefault(name, router)
        return router

    def _hosting_nodes(self, name: str) -> Callable[[], Iterable[bytes]]:
        """Return a function for the reachable nodes that may host a type by their rights."""
        overlay = self.overlay

        def nodes() -> Iterable[bytes]:
            for node in overlay.nodes():
                rights = overlay.rights(node)
                if rights is None or rights.permit("host", name):
                    yield node

        return nodes

    def _deliver_here(self, name: str, waiting: PendingMessage) -> bool:
        """Deliver a routed message to this node's host, if it serves the slot."""
        host = self._hosts.get(name)
        if host is None or (waiting.is_forwarded and waiting.slot not in host.epochs):
            return False  # the host would hold the message that it has just forwarded
        if not waiting.key:
            return host.accept_marker(waiting.slot, waiting.message)
        sender, is_urgent = waiting.sender, waiting.is_urgent
        return host.deliver(waiting.key, waiting.message, sender, is_urgent=is_urgent)

    def has_active(self, name: object, key: object) -> bool:
        """Return whether an entity is active here; the arguments may be of any type."""
        host = self._hosts.get(name) if isinstance(name, str) else None
        return host is not None and isinstance(key, str) and key in host.cells

    def bring(self, arrived: "ArrivedMessage") -> NotOwner | None:
        """Route a message of a leaf to its owner."""
        name, key, message, sender, is_urgent = arrived
        if name not in self._routers and len(self._routers) >= TYPES_LIMIT:
            return NotOwner()
        self.route(name, key, message, sender, is_urgent=is_urgent)
        return None

    def deliver(self, arrived: "ArrivedMessage", node: bytes, attempt: int) -> NotOwner | None:
        """Post a message of another node to its entity, or return a refusal."""
        name, key, message, sender, is_urgent = arrived
        host = self._hosts.get(name)
        if (
            host is not None
            and not self._refused
            and not host.router.has_forwarded
            and not host.is_closed
            and host.deliver(key, message, sender, is_urgent=is_urgent)
        ):
            return None
        slot, way = slot_of(key), (bytes(node), name)
        refused = self._refused.get(way, {})
        is_late = attempt <= refused.get(slot, -1)  # an earlier message of it was refused
        if (
            host is not None
            and not host.is_closed
            and not is_late
            and self._post_or_hold(host, key, slot, message, sender, is_urgent=is_urgent)
        ):
            refused.pop(slot, None)
            return None
        if host is not None:
            refused[slot] = max(attempt, refused.get(slot, 0))
            self._refused[way] = refused
        return NotOwner(self.table(name))

    def carried(
        self, name: str, carrier: Any, server: Any
    ) -> Callable[[Carried, DeferredBatchReply], None]:
        """Return a function that posts a message of a batch to its entity.

        It answers messages that cannot be read, and messages for slots that this node does not
        own. `server` drops expired ones. `carrier` has counted all as received.
        """
        read, node, runtime = carrier.read, carrier.node, self.runtime
        host, way, ways = self._hosts.get(name), (node, name), self._refused
        cells = {} if host is None else host.cells
        fast_host = None if host is None or host.router.has_forwarded else host
        refused: Container[int] = ways.get(way, ())

        def unread(deferred: DeferredBatchReply, error: BaseException) -> None:
            runtime.counters.dead_letters += 1
            carrier.died()
            deferred.inner.set_exception(error)

        def post(carried: Carried, deferred: DeferredBatchReply) -> None:
            nonlocal fast_host, refused
            _, flags, attempt, teller, left, key, body = carried
            if key not in cells and not is_key(key):
                deferred.inner.set_exception(_invalid_key(key))
                return
            try:
                message = read(body)
            except RemoteProtocolError as error:
                unread(deferred, error)
                return
            except RunsUserCode:
                message = Encoded(
                    partial(carrier.read_whole, body), partial(unread, deferred), len(body)
                )
            if not left:
                carrier.died()
                server.drop_expired(message, deferred.inner)
                return
            if (
                fast_host is not None
                and flags == CARRIED_ASKED
                and fast_host.deliver_carried(key, message, deferred, refused)
            ):
                return
            sender, is_asked = deferred.inner, flags & CARRIED_ASKED
            if not is_asked:
                sender = RemoteSender(runtime.ref_of(node, teller) if teller else None)
            arrived = ArrivedMessage(name, key, message, sender, flags & CARRIED_URGENT != 0)
            refusal = self.deliver(arrived, node, attempt)
            if refusal is not None or not is_asked:
                deferred.inner.set_result(refusal)
            # The message may have been refused, or may wait in a queue.
            fast_host = None if host is None or host.router.has_forwarded else host
            refused = ways.get(way, ())

        return post

    def _post_or_hold(
        self,
        host: EntityHost,
        key: str,
        slot: int,
        message: Any,
        sender: Any,
        *,
        is_urgent: bool,
    ) -> bool:
        """Post a message to its entity, or hold it for a slot that this node is claiming."""
        router = host.router
        if not router.has_forwarded_in(slot) and host.deliver(
            key, message, sender, is_urgent=is_urgent
        ):
            return True
        return router.hold(key, slot, message, sender, is_urgent=is_urgent)

    def table_for_leaf(self, name: str) -> EntityTable:
        """Return a table for a leaf, in which this node owns all slots."""
        members = {self.writer: TableMember(self.runtime.node_id.hex())}
        table = Table(1, members=members).filled()
        return EntityTable(name, table.version, table.text())

    def _send_back(self, name: str, sender: Any) -> bool:
        """Answer an ask of another node with `NotOwner`; return False for other messages."""
        is_asked = sender is not None and sender.expects
        if not is_asked or not sender.node or not sender.wants_reply:
            return False
        sender.set_result(NotOwner(self.table(name)))
        return True

    def marker(
        self, msg: EntityMarker, passed: Callable[[], object], *, is_leaf: bool = False
    ) -> None:
        """Call back when earlier messages were accepted here or by a newer owner."""
        host = self._hosts.get(msg.type_name)
        if is_leaf:  # this node's router has sent its messages
            self._router(msg.type_name).send_marker(msg.slot, passed)
        elif host is None:
            passed()
        elif host.router.has_forwarded_in(msg.slot) or not host.accept_marker(msg.slot, passed):
            host.router.forward_marker(msg.slot, passed)

    def table(self, name: str, asker: Any = None) -> EntityTable | None:
        """Return the table of a hosted type; the asking node will receive newer ones."""
        host = self._hosts.get(name)
        if host is None:
            return None
        node = b"" if asker is None else asker.node
        if node:
            self._askers.setdefault(name, set()).add(node)
        owned = self._owned.get(name)
        if owned is None:  # without leases this node owns all slots
            members = {self.writer: TableMember(self.runtime.node_id.hex())}
            table = Table(1, members=members).filled()
        else:
            table = owned.table
        return EntityTable(name, table.version, table.text()) if table.version else None

    def receive_table(self, table: EntityTable) -> None:
        """Handle a table that another member has announced."""
        if not table.is_sound or table.type_name not in self._routers:
            return
        owned = self._owned.get(table.type_name)
        if owned is not None:
            owned.table_announced(table.version)
        # The router need not wait for the register: a wrong owner refuses the messages.
        self._routers[table.type_name].receive_table(table)

    def move(self, order: MoveSlots) -> None:
        """Move slots of a type to another host.

        Raises:
            WrongValue: one of the two nodes is not a member, or a slot number is invalid.
        """
        owned = self._owned.get(order.type_name)
        if owned is None or owned.is_closed:
            msg = f"{self.runtime.name} does not share {order.type_name} with other nodes"
            raise WrongValue(msg)
        slots: Any = order.slots
        is_list = type(slots) is list and 0 < len(slots) <= SLOTS
        is_sound = is_list and all(type(s) is int and 0 <= s < SLOTS for s in slots)
        node: Any = order.node
        if not is_sound or type(node) is not str:
            msg = f"a move needs 1 to {SLOTS} slots, as numbers below {SLOTS}, and a node id"
            raise WrongValue(msg)
        owned.move(order.slots, order.node)

    # --- inspection ---

    def stats(self) -> list[EntityStats]:
        """Return the figures of the hosted types; from any thread."""
        return [self._stats(name, host) for name, host in sorted(self._hosts.items())]

    def _stats(self, name: str, host: EntityHost) -> EntityStats:
        """Return the figures of a type."""
        counters, sender = host.counters, self._routers.get(name)
        return EntityStats(
            type=name,
            state=place_of(self._urls.get(name)),
            slots=len(host.epochs),
            active=len(host.cells),
            waiting=host.waiting + (0 if sender is None else sender.waiting),
            activated=counters.activations,
            commits=counters.commits,
            events=counters.events,
            failures=counters.failures,
            fenced=counters.fenced,
            gained=counters.gained,
            moves=counters.lost,
            commit_seconds=host.commit_seconds,
        )

    def _rows(self, _filter: str, permits: Rights | None) -> list[Row]:
        """Return a row for each hosted type; on the node's thread."""
        return [
            {
                name: getattr(stats, name)
                for name in stats.__dataclass_fields__
                if name != "commit_seconds"
            }
            for stats in self.stats()
            if _may_inspect(permits, stats.type)
        ]

    def _slot_rows(self, type_filter: str, permits: Rights | None) -> list[Row]:
        """Return a row for each slot of a type, or of all types, that this node owns."""
        rows = []
        for name, host in sorted(self._hosts.items()):
            if type_filter in ("", name) and _may_inspect(permits, name):
                active = Counter(cell.slot for cell in list(host.cells.values()))
                rows += [
                    {
                        "type": name,
                        "slot": slot,
                        "epoch": epoch,
                        "active": active[slot],
                        "leaves": host.gives_away(slot),
                    }
                    for slot, epoch in sorted(host.epochs.items())
                ]
        return rows

    def _cell_rows(self, type_filter: str, permits: Rights | None) -> list[Row]:
        """Return a row for each active entity of a type, or of all types."""
        now = self.runtime.now()
        return [
            {
                "type": name,
                "key": cell.key,
                "slot": cell.slot,
                "number": cell.written,
                "depth": cell.depth,
                "idle": round(max(0.0, now - cell.last_used), 1),
            }
            for name, host in sorted(self._hosts.items())
            if type_filter in ("", name) and _may_inspect(permits, name)
            for cell in list(host.cells.values())
        ]

    async def _event_rows(self, entity: str, permits: Rights | None) -> list[Row]:
        """Return the latest events of an entity `TYPE/KEY`, if this node owns it."""
        name, _, key = entity.partition("/")
        host = self._hosts.get(name)
        if host is None or host.state is None or permits is not None or not is_key(key):
            return []
        if not host.serves(slot_of(key)):
            return []
        recent: deque[StoredEvent] = deque(maxlen=ROWS_OF_EVENTS)
        cell = host.cells.get(key)
        after = 0 if cell is None else max(0, cell.written - ROWS_OF_EVENTS)
        while page := await called(host.state, EntityState.events, name, key, after, 1_000):
            recent.extend(page)
            after = page[-1].number
        return [
            {
                "number": event.number,
                "time": Entry.moment(event.time_ms).isoformat(timespec="milliseconds"),
                "kind": event.kind,
                "version": event.version,
                "epoch": event.epoch,
                "position": event.position,
                "fields": event.body,
            }
            for event in recent
        ]

    # --- journals ---

    def journal(
        self,
        cls: object,
        *,
        after: int,
        follow: bool,
        state: str | None,
        reader: str | None,
        raw: bool,
    ) -> Journal:
        """Return the journal of a type.

        Raises:
            WrongArgument: `cls` is not an entity class, or an argument has the wrong type.
            WrongValue: this node does not know the state of the type.
        """
        name = stored_name(cls) if isinstance(cls, str) and cls else type_name(cls)
        require(state is None or isinstance(state, str), "state is a text", state)
        for argument, value in (("follow", follow), ("raw", raw)):
            require(type(value) is bool, f"{argument} is True or False", value)
        checked_count(after, "after")
        host = self._hosts.get(name)
        url = state if state is not None else self._urls.get(name)
        if url is None:
            problem = (
                "is hosted without a state" if host else f"is not hosted on {self.runtime.name}"
            )
            step = "host it with state=…" if host else "give its state: journal(…, state=…)"
            msg = f"{name} {problem}, so this node has no journal of it; {step}"
            raise WrongValue(msg)
        kind = EntityType(cls) if isinstance(cls, type) else host.type if host else None
        decoder = EntryDecoder(self.form, name, kind, is_raw=raw)
        name_of_reader = checked_reader(reader)
        return Journal(
            self, url, name, decoder, after=after, follow=follow, reader=name_of_reader
        )

    async def parked_reminders(self, cls: object, state: str | None) -> list[ParkedReminder]:
        """Return the parked reminders of a type.

        Raises:
            WrongArgument: `cls` is not an entity class, or the state is not a text.
            WrongValue: this node does not know the state of the type.
        """
        name, url = self._place_of(cls, state)
        rows = await called(await self.state(url), EntityState.parked_reminders, name)
        read = self.form.read_or_show
        return [
            ParkedReminder(row.key, row.name, Entry.moment(row.due_ms), read(row.body))
            for row in rows
        ]

    async def start_reminders(
        self, cls: object, key: str, reminder: str | None, state: str | None
    ) -> int:
        """Make parked reminders of an entity due now; returns how many.

        Raises:
            WrongArgument: an argument has the wrong type, or `cls` is not an entity class.
            WrongValue: this node does not know the state of the type.
        """
        name, url = self._place_of(cls, state)
        key = checked_key(key)
        if reminder is not None:
            reminder = checked_key(reminder, "reminder's name")
        client = await self.state(url)
        count: int = await called(client, EntityState.start_reminders, name, key, reminder)
        if host := self._hosts.get(name):
            host.reminders.scan()
        return count

    def _place_of(self, cls: object, state: str | None) -> tuple[str, str]:
        """Return the name of a type and the URL of its state."""
        name = stored_name(cls) if isinstance(cls, str) and cls else type_name(cls)
        require(state is None or isinstance(state, str), "state is a text", state)
        url = state if state is not None else self._urls.get(name)
        if url is None:
            msg = f"{self.runtime.name} does not know the state of {name}; give state=…"
            raise WrongValue(msg)
        return name, url

    async def view(self, url: str) -> StateClient:
        """Return a read-only client of a state, opened once for the node."""
        client: StateClient = await self._open(self._views, url, open_view)
        return client

    async def state(self, url: str) -> StateClient:
        """Return a client of a state, opened once for the node."""
        client: StateClient = await self._open(self._states, url, open_state)
        return client

    def followed(self, name: str, node: bytes, *, is_leaf: bool) -> EntityTable | None:
        """Notify a node from now on when the journal of a hosted type grows."""
        if node and name in self._hosts:
            self.growth.add(name, node)
        return self.table_for_leaf(name) if is_leaf else self.table(name)

    # --- owners ---

    def passivate(self, type_name: str, key: str) -> None:
        """Passivate an entity at its owner."""
        node = self.owner(type_name, key)
        if node == self.runtime.node_id:
            self.passivate_here(type_name, key)
        elif node:
            self.runtime.ref_of(node, ENTITIES).tell(StopEntity(type_name, key))

    def passivate_here(self, type_name: str, key: str) -> None:
        """Passivate an entity of this node after its messages."""
        host = self._hosts.get(type_name)
        if host is not None and (cell := host.cells.get(key)) is not None:
            host.passivate(cell)

    def error_of_unsent(self, type_name: str, key: str, asker: Any) -> BaseException | None:
        """Return the error of an expired ask that was never sent; None if it was sent."""
        sender = self._routers.get(type_name)
        return None if sender is None else sender.error_of_unsent(key, slot_of(key), asker)

    def owner(self, type_name: str, key: str) -> bytes:
        """Return the node that owns an entity; empty if this node does not know it."""
        host, slot = self._hosts.get(type_name), slot_of(key)
        if host is not None and host.serves(slot):
            own: bytes = self.runtime.node_id
            return own
        sender = self._routers.get(type_name)
        return b"" if sender is None else sender.table.node_of(slot)

    # --- the end ---

    async def drain(self, deadline: Deadline) -> None:
        """Move all slots to the other members, within a deadline.

        All types start together and take turns (`MoveTurns`). A type that cannot drain its
        slots returns its turn, so it does not use up the time of the others.
        """
        moves = [(name, owned.start_drain()) for name, owned in list(self._owned.items())]
        for name, move in moves:
            await self._in_time(move, deadline)
            forwarded: Future[None] = Future()
            self._router(name).when_idle(partial(forwarded.set_result, None))
            await self._in_time(forwarded, deadline)

    async def close(self, deadline: Deadline) -> None:
        """Commit what is in flight, and give all slots to the other members.

        Activations that have not ended after half of the time are killed, so that their slots
        are given away in the other half.
        """
        hosts = list(self._hosts.items())
        half = Deadline.after(self.runtime.now, deadline.left() / 2)
        emptied: list[Future[None]] = []
        for _, host in hosts:
            future: Future[None] = Future()
            emptied.append(future)
            host.close(partial(future.set_result, None))
        for future, (_, host) in zip(emptied, hosts, strict=True):
            await self._in_time(future, half)
            if not future.done():
                host.kill_all("its node was closed before the entity had ended")
        for name, _ in hosts:
            owned = self._owned.get(name)
            if owned is not None:
                await self._in_time(owned.start_leaving(), deadline)

    async def _in_time(self, change: Future[None], deadline: Deadline) -> None:
        """Await a change until a deadline; slots that are left end with the node's lease."""
        waiter: Future[None] = Future()
        change.on_done(lambda done: waiter.set_result(None))
        late = OutcomeUnknown("slots are left")
        with suppress(StorageError):
            await self.runtime.in_time(waiter, deadline.left(), late)

    def release(self) -> None:
        """Close states and leases; on a thread that may block."""
        if self._stop_listening is not None:
            self._stop_listening()
        for lease in self._held.values():
            lease.close()
        for opened in (self._states, self._leases, self._views):
            for client in opened.values():
                client.close()
            opened.clear()


def _may_inspect(permits: Rights | None, type_name: str) -> bool:
    """Return whether rights permit to inspect a type."""
    return permits is None or permits.permit("entities", type_name)


def place_of(url: str | None) -> str:
    """Return the place of a state without a password; "" for no state."""
    if url is None or "://" not in url:
        return url or ""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
