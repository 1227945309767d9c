"""The entities of a node: the types that it hosts, and the way to those of other nodes."""

import threading
from collections import Counter, deque
from collections.abc import Callable, Container, Coroutine, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar
from urllib.parse import urlsplit

from callboard import locks
from callboard.entity.cell import HeldCarried
from callboard.entity.entity import (
    Entity,
    EntityType,
    checked_key,
    stored_name,
    type_name,
)
from callboard.entity.errors import DuplicateEntityType, NeedsLeases
from callboard.entity.event_json import EventSerializer
from callboard.entity.host import EntityHost
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
    LOOK,
    MoveTurns,
    Ownership,
    OwnershipHooks,
    called,
    wrong_state,
)
from callboard.entity.reentrancy import would_deadlock
from callboard.entity.reference import EntityRef
from callboard.entity.reminders import ParkedReminder
from callboard.entity.sending import TypeSender, Waiting
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

#: Events of one entity that are shown to who looks.
ROWS_OF_EVENTS: Final = 1_000

#: Seconds that other nodes have to tell which table they know, before this one hosts.
ASK_SECONDS: Final = 1.0

#: Types that a node sends to for its leaves, which may name any that their rights match.
TYPES_LIMIT: Final = 1_000

#: Opens state and leases of a URL for a writer: simulations have others.
Opener = Callable[[str, str], Any]


class _Teller(MessageSender):
    """An actor elsewhere that told an entity something."""

    __slots__ = ("_ref",)

    expects: Final = False
    deadline: Final = None

    def __init__(self, ref: ActorRef[Any] | None) -> None:
        self._ref = ref

    def reference(self, _: Home) -> ActorRef[Any] | None:
        """Return its ref."""
        return self._ref


class ArrivedMessage(NamedTuple):
    """A message of another node for an entity."""

    type_name: str
    key: str
    message: Any
    sender: Any
    is_urgent: bool


def _no_key(key: object) -> WrongValue:
    """Return the error of a message to what is no key."""
    what = f"a key has 1 to {KEY_LIMIT} bytes in UTF-8 and no NUL"
    return WrongValue(f"{what}; {safe_repr(key):.80} has not")


class EntityServer(SystemActor):
    """Takes messages of other nodes for entities of this one.

    What comes may have been made by a program that is no callboard: each field is looked at.
    A leaf may do what its rights `entities` and `host` name. It knows no other members, so to
    it this node is the owner of all: what it sends goes on from here.
    """

    def __init__(self, entities: "Entities") -> None:
        """Serve the entities of a node."""
        self._entities = entities

    @handler
    def on_message(self, msg: EntityMessage) -> NotOwner | None:
        """Give a message to its entity, or say who is not the owner."""
        cell: Any = self.context
        entities, key, asker = self._entities, msg.key, cell.sender
        is_leaf = entities.overlay.rights(cell.sender_node) is not None
        # What lives here has a name and a key that can be meant.
        if is_leaf or not entities.has_active(msg.type_name, key):
            if self._refuses(msg.type_name, ("entities",)):
                return None
            if not is_key(key):
                self._refuse(_no_key(key))
                return None
        is_asked = msg.is_asked is True
        if is_asked:
            if asker is None or not asker.expects:
                return None
            # Not kept as a promise: who handles it answers, also when this actor has ended.
            cell.promised = asker
            asker.mark_handled()
        trace, chain = INSTRUMENTATION.current(), INSTRUMENTATION.chain.get()
        message = Envelope(msg.message, trace, chain=chain) if trace or chain else msg.message
        sender: Any = asker
        if not is_asked:
            sender = _Teller(msg.sender if isinstance(msg.sender, ActorRef) else None)
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
        """Give messages that came together to their entities."""
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
            text = f"{len(messages):,} messages for entities came as {count:,}"
            self._refuse(MalformedPayload(text))
            return
        cell.promised = carrier  # each message has an answer of its own
        carrier.mark_handled()
        take, now = self._entities.carried(msg.type_name, carrier, cell), cell.runner.now()
        for carried in messages:
            left, deadline = carried[4], None
            if left != NO_DEADLINE:
                INSTRUMENTATION.used = True
                deadline = now + left / 1000
            held = HeldCarried(carrier, carried[0], deadline)
            try:
                take(carried, held)
            except Exception as error:  # noqa: BLE001 - the others are no part of it
                held.inner.set_exception(remote_error(error))
                text = f"{class_name(error)}: {error_text(error)}"
                self._entities.runtime.note_failure(cell, text, error)

    @handler
    def on_ask(self, msg: AskEntityTable) -> EntityTable | None:
        """Tell the table of a type."""
        if self._refuses(msg.type_name, ("entities", "host")):
            return None
        rights = self._rights()
        if rights is None or rights.permit("host", msg.type_name):
            return self._entities.table(msg.type_name, self.context.sender)
        return self._entities.table_for_leaf(msg.type_name)

    @handler
    def on_table(self, msg: EntityTable) -> None:
        """Take a newer table."""
        if not self._refuses(msg.type_name, ("host",)):
            self._entities.take(msg)

    @handler
    def on_vote(self, msg: AskVote) -> bool | None:
        """Say whether a member is out of reach."""
        if self._refuses(msg.type_name, ("host",)) or type(msg.writer) is not str:
            return None
        return self._entities.vote(msg.type_name, msg.writer)

    @handler
    def on_marker(self, msg: EntityMarker) -> None:
        """Answer when all that was sent before has been taken or refused."""
        if self._refuses(msg.type_name, ("entities",)):
            return
        if type(msg.slot) is not int or not 0 <= msg.slot < SLOTS:
            what = f"a slot is a number below {SLOTS}, not {safe_repr(msg.slot):.80}"
            self._refuse(WrongValue(what))
            return
        promise = self.promise()
        if msg.is_refused is True:
            promise.set_result(None)
            return
        passed = partial(promise.set_result, None)
        self._entities.marker(msg, passed, is_leaf=self._rights() is not None)

    @handler
    def on_follow(self, msg: FollowJournal) -> EntityTable | None:
        """Tell the node that asks when the journal of a type grows."""
        if self._refuses(msg.type_name, ("entities", "host")):
            return None
        rights = self._rights()
        is_member = rights is None or rights.permit("host", msg.type_name)
        return self._entities.followed(msg.type_name, self._peer(), is_leaf=not is_member)

    @handler
    def on_grew(self, msg: JournalGrew) -> None:
        """Let those go on that follow a journal."""
        if not self._refuses(msg.type_name, ("host",)):
            self._entities.growth.wake(msg.type_name)

    @handler
    def on_move(self, msg: MoveSlots) -> None:
        """Let slots move to another host."""
        if self._refuses(msg.type_name, ("host",)):
            return
        try:
            self._entities.move(msg)
        except WrongValue as error:
            self._refuse(error)

    @handler
    def on_stop(self, msg: StopEntity) -> None:
        """Put an entity away."""
        if not self._refuses(msg.type_name, ("entities",)) and is_key(msg.key):
            self._entities.put_away_here(msg.type_name, msg.key)

    def _rights(self) -> Rights | None:
        """Return the rights of the sender; None for a full member."""
        return self._entities.overlay.rights(self._peer())

    def _peer(self) -> bytes:
        """Return the node of the sender."""
        return self.context.sender_node

    def _refuses(self, type_name: object, rights: Sequence[NamedRight]) -> bool:
        """Return whether a type cannot be meant, or its sender has none of some rights.

        Then the message is answered.
        """
        if not is_type_name(type_name):
            text = f"{safe_repr(type_name):.80} is no name of a type of entities"
            self._refuse(WrongValue(text))
            return True
        name, given = str(type_name), self._rights()
        if given is None or any(given.permit(right, name) for right in rights):
            return False
        self._entities.overlay.refused(self._peer(), rights[0], name)
        text = f"no right {rights[0]!r} for {name!r} at {self.node.name}"
        self._refuse(NotPermitted(text))
        return True

    def _refuse(self, error: BaseException) -> None:
        """Answer with an error; raised, it would end this actor."""
        self.promise().set_exception(error)


class Entities:
    """What a node has to do with entities."""

    def __init__(
        self,
        runtime: NodeContext,
        runner: Any,
        codec: PayloadCodec,
        overlay: Topology,
        start: Callable[[Coroutine[Any, Any, Any]], Future[Any]],
        wait: Callable[[Coroutine[Any, Any, Any]], Any],
    ) -> None:
        """Make one without types.

        Args:
            runtime: of the node.
            runner: of the node.
            codec: how messages are written there.
            overlay: tells which nodes are in reach.
            start: runs a coroutine on the node's loop.
            wait: runs one to its end, for a thread that may block.
        """
        self.start, self.wait = start, wait
        #: Tells who follows journals.
        self.growth = JournalGrowth(runtime, overlay.nodes)
        self.runtime: Any = runtime
        self._runner = runner
        #: How events and jobs are written.
        self.form = EventSerializer(codec)
        self.overlay, self._start = overlay, start
        self._hosts: dict[str, EntityHost] = {}
        self._owned: dict[str, Ownership] = {}
        self.hosted: Container[str] = self._hosts.keys()
        self._senders: dict[str, TypeSender] = {}
        self._turns = MoveTurns()
        #: Nodes that asked for a table, by type.
        self._askers: dict[str, set[bytes]] = {}
        #: States and leases by URL.
        self._states: dict[str, StateClient] = {}
        self._leases: dict[str, Any] = {}
        #: States of which journals are read, by URL.
        self._views: dict[str, StateClient] = {}
        #: Where the events of the types are that this node hosts.
        self._urls: dict[str, str | None] = {}
        #: The leases of this node and the terms that are valid, by URL.
        self._held: dict[str, LeaseDriver] = {}
        self._terms: dict[str, int] = {}
        #: Where the table of a type is, by its name.
        self._registers: dict[str, str] = {}
        #: By node and type of messages that were refused: the latest attempt for each slot.
        self._refused: dict[tuple[bytes, str], dict[int, int]] = {}
        self._stop_listening: Callable[[], object] | None = None
        #: What is being opened: in which of these, of which URL.
        self._opening: dict[tuple[int, str], Future[Any]] = {}
        self._joining: set[str] = set()
        self._queues: dict[str, WorkQueue] = {}
        #: With what the types of singletons are hosted.
        self._hosted_as: dict[str, Any] = {}
        self._lock = locks.lock("entities of a node", 510)
        #: Names this life of the node in fences and in the table.
        self.writer = f"{runtime.node_id.hex()}-{runner.random.getrandbits(32):08x}"
        INSTRUMENTATION.used = True  # its actors have outboxes
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
        """Let this node run entities of a class; returns when it is a member.

        Raises:
            DuplicateEntityType: a class of that name is hosted here.
            NeedsLeases: another node hosts it, and there are no leases.
            StorageError: the state cannot be opened.
        """
        name, kind = type_name(cls), EntityType(cls)
        for what, url in (("state", state), ("leases", leases)):
            is_url = isinstance(url, str | None)
            require(is_url, f"{what} is a text such as 'sqlite:shop.db'", url)
        with self._lock:
            if name in self._joining:
                msg = (
                    f"{name} is hosted on {self.runtime.name} already; set `name` of the class "
                    "for another type"
                )
                raise DuplicateEntityType(msg)
            self._joining.add(name)
        try:
            await self._join(name, kind, (args, kwargs), state, leases or state)
            self.runtime.report(EntityTypeHosted(name, place_of(state)))
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
        """Host a class, unless that is so, and let the entity of a key run for ever.

        Raises:
            DuplicateEntityType: another class of that name is hosted here, or with other
                arguments.
            NeedsLeases: another node hosts it, and there are no leases.
            StorageError: the state cannot be opened.
        """
        ref = self.entity(cls, checked_key(key))
        name, asked = type_name(cls), (cls, args, kwargs, state, leases)
        if self._hosted_as.get(name) != asked:
            await self.host(cls, args, kwargs, state, leases)
            self._hosted_as[name] = asked
        self._hosts[name].singletons.add(key)
        return ref

    async def host_queue(
        self, name: str, state: str, leases: str | None, attempts: int, limit: int
    ) -> None:
        """Let this node own a work queue.

        Raises:
            DuplicateEntityType: it is hosted here with another state, or other limits.
            StorageError: the state cannot be opened.
            WrongArgument: the name is no text.
            WrongValue: the name is empty, too long, or has spaces or slashes.
        """
        from callboard.entity.queue.queue_entity import QueueDesk, checked_queue, queue_class

        cls, asked = queue_class(checked_queue(name)), (state, leases, attempts, limit)
        if self._hosted_as.get(cls.name) == asked:
            return
        desk = QueueDesk(attempts, limit)
        await self.host(cls, (desk,), {}, state, leases)
        self._hosted_as[cls.name] = asked
        host = self._hosts[cls.name]
        host.when_left = desk.left
        host.singletons.add(name)

    def queue(self, name: str) -> "WorkQueue":
        """Return a work queue, whoever owns it.

        Raises:
            WrongArgument: the name is no text.
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
        state: str | None,
        leases: str | None,
    ) -> None:
        """Make the host of a type and let it become a member."""
        client = await self._open(self._states, state, open_state)
        host = EntityHost(
            self.runtime,
            self.form,
            kind,
            arguments,
            client,
            self._ref,
            is_checked=is_wanted(self._runner),
        )
        host.runner = self._runner
        host.writer, host.send_back = self.writer, self._send_back
        sender = self._sender(name)
        host.send_by(sender)
        host.grew = partial(self.growth.grew, name)
        self._urls[name] = state
        register = await self._open(self._leases, leases, self._open_leases)
        if register is None:
            await self._refuse_second(name)
            host.serve(dict.fromkeys(range(SLOTS), 1))
            self._hosts[name] = host
            self._sender(name).flush()
            return
        shared = SharedState()
        if client is not None:
            shared = SharedState(*await called(client, EntityState.identity))
            host.reminders.set_clock(await called(client, EntityState.clock))
        await self._refuse_other_state(name, shared)
        ask_vote = partial(self._ask_vote, name)
        settle = partial(self._settle, name)
        adopted = partial(self._adopted, name)
        hooks = OwnershipHooks(adopted, sender.flush, ask_vote, settle, self._turns)
        assert leases is not None, "a register has a URL"
        owned = Ownership(host, register, self._held[leases], self.runtime, hooks)
        self._hosts[name], self._owned[name] = host, owned
        self._registers[name] = leases
        if self._stop_listening is None:
            self._stop_listening = self.runtime.listen(self._happened)
        if leases in self._terms:
            owned.begin_term(self._terms[leases])
        try:
            await owned.join(shared)
        except BaseException:
            owned.abandon()
            raise
        self.runtime.call_later(LOOK, self._tend, owned)

    async def _open(self, opened: dict[str, Any], url: str | None, opener: Opener) -> Any:
        """Return what calls a state or a register of a URL, opened once for the node."""
        if url is None:
            return None
        if url not in opened and (model := self._runner.databases) is not None:
            opened[url] = model(url).client(self.writer, self._runner)
            if opened is self._leases:
                self._hold_lease(url, LeaseLoop(opened[url], self.runtime))
        if url not in opened:
            # Two of one life at a register would take each other's proof of life away.
            way = id(opened), url
            future = self._opening.get(way)
            if future is None:
                future = self._opening[way] = self._opened_by_thread(opener, url)
            try:
                found = await future
            finally:
                self._opening.pop(way, None)
            if url not in opened:
                opened[url] = ThreadedStateClient(found, self.runtime.post)
        return opened[url]

    def _opened_by_thread(self, opener: Opener, url: str) -> Future[Any]:
        """Have a state or a register opened on a thread."""
        future: Future[Any] = Future()

        def run() -> None:
            try:
                future.set_result(opener(url, self.writer))
            except BaseException as error:  # noqa: BLE001 - it is the caller's
                future.set_exception(error)

        threading.Thread(target=run, name="callboard-open", daemon=True).start()
        return future

    def _open_leases(self, url: str, writer: str) -> Any:
        """Open a register, and begin to hold a lease there; may block."""
        leases = open_leases(url, writer)
        try:
            self._hold_lease(url, LeaseThread(leases.again(), self.runtime.name))
        except BaseException:
            leases.close()
            raise
        return leases

    def _hold_lease(self, url: str, place: LeasePlace) -> None:
        """Hold this node's lease in a register from here on."""

        def tell(news: LeaseNews) -> None:
            self.runtime.post(self._take_news, url, news)

        machine = LeaseMachine(self.writer)
        self._held[url] = LeaseDriver(place, machine, tell, running=self._running)
        self._held[url].start()

    def _running(self) -> str:
        """Return the handler that holds this node's thread; empty if none does."""
        frame = handler_frame(self._runner.holder or 0)
        return "" if frame is None else frame.f_code.co_qualname

    def _of_register(self, url: str) -> list[Ownership]:
        """Return the ownerships of types whose tables are in a register."""
        return [each for name, each in self._owned.items() if self._registers[name] == url]

    def _take_news(self, url: str, news: LeaseNews) -> None:
        """Take what became of this node's lease, and of those of others."""
        owned = self._of_register(url)
        match news:
            case LeaseHeld(term):
                self._terms[url] = term
                for each in owned:
                    each.begin_term(term)
            case LeaseKilled(by):
                self._terms.pop(url, None)
                for each in owned:
                    each.end_term()
                why = f"killed by {by}: it was silent" if by else "removed from its register"
                text = f"the lease of {self.runtime.name} was {why}"
                self.runtime.warn_once(("lease killed", url), text)
                self._held[url].begin_anew()
            case HolderGone(writer, number):
                for each in owned:
                    each.holder_gone(writer, number)
            case LeaseLost():
                self.runtime.warn_once(("lease lost", url, news.handler), str(news))

    def _happened(self, event: object) -> None:
        """Take note of nodes that come and go; on any thread."""
        if isinstance(event, NodeDown | NodeUp):
            self.runtime.post(self._node_changed, event)

    def _node_changed(self, event: NodeDown | NodeUp) -> None:
        """Let members that were on a lost node be looked for, and voted on."""
        if isinstance(event, NodeDown):
            lost = [way for way in self._refused if way[0] == event.node_id]
            for way in lost:
                del self._refused[way]
        for each in list(self._owned.values()):
            if isinstance(event, NodeDown):
                each.node_down(event.node_id)
            else:
                each.node_up(event.node_id)

    def _ask_vote(self, name: str, node: bytes, writer: str) -> Future[Any]:
        """Ask a node whether a member is out of its reach."""
        answer: Future[Any] = self.runtime.ref_of(node, ENTITIES).ask(
            AskVote(name, writer), timeout=BALLOT_SECONDS
        )
        return answer

    def _settle(self, name: str, slots: Iterable[int], settled: Callable[[], object]) -> None:
        """Call back when all that other members passed on for some slots has come here."""
        nodes = {bytes.fromhex(node) for node in self._owned[name].table.nodes}
        nodes.discard(self.runtime.node_id)
        reached = [node for node in nodes if self.runtime.is_reachable(node)]
        self._sender(name).ask_markers(slots, reached, settled)

    def vote(self, name: str, writer: str) -> bool | None:
        """Return whether a member of a type is out of reach; None where nobody can tell."""
        owned = self._owned.get(name)
        return None if owned is None else owned.vote(writer)

    async def _refuse_second(self, name: str) -> None:
        """Refuse to host what another node hosts, without leases.

        Raises:
            NeedsLeases: another node does.
        """
        if await self._tables_elsewhere(name):
            msg = (
                f"{name} is hosted by another node, and nothing decides between the two; "
                'give both state="…", or leases="…"'
            )
            raise NeedsLeases(msg)

    async def _refuse_other_state(self, name: str, own: SharedState) -> None:
        """Refuse to host what nodes in reach host with another state, and another table.

        Raises:
            WrongState: one does.
        """
        for table in await self._tables_elsewhere(name):
            if table.members and table.state[::2] != own[::2]:  # the id and the boot id
                raise wrong_state(name, own, table)

    async def _tables_elsewhere(self, name: str) -> list[Table]:
        """Return the tables of a type that the nodes in reach have."""
        asks = [
            self.runtime.ref_of(node, ENTITIES).ask(AskEntityTable(name), timeout=ASK_SECONDS)
            for node in self._tellers(name)()
        ]
        tables = []
        for ask in asks:
            try:
                found = await ask
            except Exception:  # noqa: BLE001, S112 - it has no entities
                continue
            if isinstance(found, EntityTable) and found.is_sound:
                with suppress(StateCorrupt, StateVersion):
                    tables.append(Table.read(found.text))
        return tables

    def _tend(self, owned: Ownership) -> None:
        """Let a type's membership be looked after, again and again."""
        if owned.is_closed or self.runtime.is_closed:
            return
        owned.tend()
        self.runtime.call_later(LOOK, self._tend, owned)

    def _adopted(self, name: str, table: Table) -> None:
        """Take a newer table, and tell the other members and those who asked."""
        url = self._registers[name]
        owned = self._of_register(url)
        self._held[url].watch({writer for each in owned for writer in each.table.members})
        self._sender(name).adopt(table, is_certain=True)
        told = EntityTable(name, table.version, table.text())
        nodes = {bytes.fromhex(node) for node in table.nodes}
        others = (nodes | self._askers.get(name, set())) - {self.runtime.node_id}
        for node in sorted(others):  # in an order that a simulation finds again
            if self.runtime.is_reachable(node):
                self.runtime.ref_of(node, ENTITIES).tell(told)

    # --- messages ---

    def entity(self, cls: object, key: str) -> EntityRef[Any]:
        """Return the ref of an entity.

        Raises:
            WrongArgument: that is no entity class, or no key.
            WrongValue: the key is empty or too long.
        """
        name = stored_name(cls) if isinstance(cls, str) and cls else type_name(cls)
        return EntityRef(self.runtime, self, name, checked_key(key))

    def _ref(self, name: str, key: str) -> EntityRef[Any]:
        """Return the ref of a key that is one."""
        return EntityRef(self.runtime, self, name, key)

    def route(
        self, type_name: str, key: str, message: Any, sender: Sender | None, *, is_urgent: bool
    ) -> None:
        """Bring a message to an entity; from any thread, never blocks."""
        is_long = message.__class__ is Envelope and len(message.chain) >= CHAIN_LIMIT
        if is_long and sender is not None and sender.expects:
            sender.set_exception(would_deadlock(message.chain, f"{type_name}/{key}"))
            return
        slot = slot_of(key)
        host = self._hosts.get(type_name)
        sending = self._senders.get(type_name) or self._sender(type_name)
        if (
            host is None
            or sending.is_waiting(slot)
            or not host.deliver(key, message, sender, is_urgent=is_urgent)
        ):
            sending.send(key, slot, message, sender, is_urgent=is_urgent)

    def _sender(self, name: str) -> TypeSender:
        """Return what sends to the owners of a type."""
        found = self._senders.get(name)
        if found is None:
            here = partial(self._deliver_here, name)
            is_host = partial(self._hosts.__contains__, name)
            made = TypeSender(self.runtime, name, here, self._tellers(name), is_host)
            found = self._senders.setdefault(name, made)
        return found

    def _tellers(self, name: str) -> Callable[[], Iterable[bytes]]:
        """Return what gives the nodes in reach whose word on the owners of a type counts."""
        overlay = self.overlay

        def nodes() -> Iterable[bytes]:
            for node in overlay.nodes():
                rights = overlay.rights(node)
                if rights is None or rights.permit("host", name):
                    yield node

        return nodes

    def _deliver_here(self, name: str, waiting: Waiting) -> bool:
        """Give a message that waited to this node's host, if it serves the slot."""
        host = self._hosts.get(name)
        if host is None or (waiting.is_passing and waiting.slot not in host.epochs):
            return False  # the host would hold again what it has just let go
        if not waiting.key:
            return host.take_marker(waiting.slot, waiting.message)
        sender, is_urgent = waiting.sender, waiting.is_urgent
        return host.deliver(waiting.key, waiting.message, sender, is_urgent=is_urgent)

    def has_active(self, name: object, key: object) -> bool:
        """Return whether an entity lives here, by what may be no names at all."""
        host = self._hosts.get(name) if isinstance(name, str) else None
        return host is not None and isinstance(key, str) and key in host.cells

    def bring(self, arrived: "ArrivedMessage") -> NotOwner | None:
        """Let a message of a leaf go on to its owner."""
        name, key, message, sender, is_urgent = arrived
        if name not in self._senders and len(self._senders) >= TYPES_LIMIT:
            return NotOwner()
        self.route(name, key, message, sender, is_urgent=is_urgent)
        return None

    def deliver(self, arrived: "ArrivedMessage", node: bytes, attempt: int) -> NotOwner | None:
        """Give a message of another node to its entity, or return why not."""
        name, key, message, sender, is_urgent = arrived
        host = self._hosts.get(name)
        if (
            host is not None
            and not self._refused  # as nearly always
            and not host.sending.has_lines
            and not host.is_closed
            and host.deliver(key, message, sender, is_urgent=is_urgent)
        ):
            return None
        slot, way = slot_of(key), (bytes(node), name)
        refused = self._refused.get(way, {})
        is_late = attempt <= refused.get(slot, -1)  # one before it was refused
        if (
            host is not None
            and not host.is_closed
            and not is_late
            and self._take_or_hold(host, key, slot, message, sender, is_urgent=is_urgent)
        ):
            refused.pop(slot, None)
            return None
        if host is not None:
            refused[slot] = max(attempt, refused.get(slot, 0))
            self._refused[way] = refused
        return NotOwner(self.table(name))

    def carried(
        self, name: str, carrier: Any, server: Any
    ) -> Callable[[Carried, HeldCarried], None]:
        """Return what gives a message that came with others to its entity.

        It answers what cannot be read, and where this node is not the owner; `server` drops
        what has no time left. `carrier` counted all as taken.
        """
        read, node, runtime = carrier.read, carrier.node, self.runtime
        host, way, ways = self._hosts.get(name), (node, name), self._refused
        cells = {} if host is None else host.cells
        quick = None if host is None or host.sending.has_lines else host
        refused: Container[int] = ways.get(way, ())

        def unread(held: HeldCarried, error: BaseException) -> None:
            runtime.counters.dead_letters += 1
            carrier.died()
            held.inner.set_exception(error)

        def take(carried: Carried, held: HeldCarried) -> None:
            nonlocal quick, refused
            _, flags, attempt, teller, left, key, body = carried
            if key not in cells and not is_key(key):
                held.inner.set_exception(_no_key(key))
                return
            try:
                message = read(body)
            except RemoteProtocolError as error:
                unread(held, error)
                return
            except RunsUserCode:
                message = Encoded(
                    partial(carrier.read_whole, body), partial(unread, held), len(body)
                )
            if not left:
                carrier.died()
                server.drop_expired(message, held.inner)
                return
            if (
                quick is not None
                and flags == CARRIED_ASKED
                and quick.deliver_carried(key, message, held, refused)
            ):  # as nearly always
                return
            sender, is_asked = held.inner, flags & CARRIED_ASKED
            if not is_asked:
                sender = _Teller(runtime.ref_of(node, teller) if teller else None)
            arrived = ArrivedMessage(name, key, message, sender, flags & CARRIED_URGENT != 0)
            refusal = self.deliver(arrived, node, attempt)
            if refusal is not None or not is_asked:
                held.inner.set_result(refusal)
            # It may have been refused, or wait in a line.
            quick = None if host is None or host.sending.has_lines else host
            refused = ways.get(way, ())

        return take

    def _take_or_hold(
        self,
        host: EntityHost,
        key: str,
        slot: int,
        message: Any,
        sender: Any,
        *,
        is_urgent: bool,
    ) -> bool:
        """Give a message to its entity, or let it wait for a slot that this node claims."""
        sending = host.sending
        if not sending.is_in_line(slot) and host.deliver(
            key, message, sender, is_urgent=is_urgent
        ):
            return True
        return sending.hold(key, slot, message, sender, is_urgent=is_urgent)

    def table_for_leaf(self, name: str) -> EntityTable:
        """Return a table in which this node owns all: who asks knows no other one."""
        members = {self.writer: TableMember(self.runtime.node_id.hex())}
        table = Table(1, members=members).filled()
        return EntityTable(name, table.version, table.text())

    def _send_back(self, name: str, sender: Any) -> bool:
        """Tell a node that asked that this one is no owner; False if it was none that asked."""
        is_asked = sender is not None and sender.expects
        if not is_asked or not sender.node or not sender.wants_reply:
            return False
        sender.set_result(NotOwner(self.table(name)))
        return True

    def marker(
        self, msg: EntityMarker, passed: Callable[[], object], *, is_leaf: bool = False
    ) -> None:
        """Call back once what was sent here before is taken, by this node or a newer owner."""
        host = self._hosts.get(msg.type_name)
        if is_leaf:  # its messages are among those that this node sends
            self._sender(msg.type_name).send_marker(msg.slot, passed)
        elif host is None:
            passed()
        elif host.sending.is_in_line(msg.slot) or not host.take_marker(msg.slot, passed):
            host.sending.pass_marker(msg.slot, passed)

    def table(self, name: str, asker: Any = None) -> EntityTable | None:
        """Return the table of a type that this node hosts; who asks is told of newer ones."""
        host = self._hosts.get(name)
        if host is None:
            return None
        node = b"" if asker is None else asker.node
        if node:
            self._askers.setdefault(name, set()).add(node)
        owned = self._owned.get(name)
        if owned is None:  # without leases this node has all
            members = {self.writer: TableMember(self.runtime.node_id.hex())}
            table = Table(1, members=members).filled()
        else:
            table = owned.table
        return EntityTable(name, table.version, table.text()) if table.version else None

    def take(self, told: EntityTable) -> None:
        """Take a table that another member tells."""
        if not told.is_sound or told.type_name not in self._senders:
            return
        owned = self._owned.get(told.type_name)
        if owned is not None:
            owned.told(told.version)
        # Where messages go need not wait for the register: an owner looks for itself.
        self._senders[told.type_name].take(told)

    def move(self, order: MoveSlots) -> None:
        """Let slots of a type move to another host.

        Raises:
            WrongValue: this node is no member, that node is none, or there are no such slots.
        """
        owned = self._owned.get(order.type_name)
        if owned is None or owned.is_closed:
            msg = f"{self.runtime.name} does not share {order.type_name} with other nodes"
            raise WrongValue(msg)
        given: tuple[Any, Any] = order.slots, order.node
        is_list = type(given[0]) is list and 0 < len(given[0]) <= SLOTS
        is_sound = is_list and all(type(s) is int and 0 <= s < SLOTS for s in given[0])
        if not is_sound or type(given[1]) is not str:
            msg = f"moves are of 1 to {SLOTS} slots, numbers below that, to the id of a node"
            raise WrongValue(msg)
        owned.move(order.slots, order.node)

    # --- looked at ---

    def stats(self) -> list[EntityStats]:
        """Return what there is to say of the types that this node hosts; from any thread."""
        return [self._stats(name, host) for name, host in sorted(self._hosts.items())]

    def _stats(self, name: str, host: EntityHost) -> EntityStats:
        """Return what there is to say of a type."""
        counters, sender = host.counters, self._senders.get(name)
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

    def _rows(self, _which: str, permits: Rights | None) -> list[Row]:
        """Tell of the types that this node hosts; on the node's thread."""
        return [
            {
                name: getattr(stats, name)
                for name in stats.__dataclass_fields__
                if name != "commit_seconds"
            }
            for stats in self.stats()
            if _may_look(permits, stats.type)
        ]

    def _slot_rows(self, which: str, permits: Rights | None) -> list[Row]:
        """Tell of the slots of a type, or of all, that this node owns."""
        found = []
        for name, host in sorted(self._hosts.items()):
            if which in ("", name) and _may_look(permits, name):
                active = Counter(cell.slot for cell in list(host.cells.values()))
                found += [
                    {
                        "type": name,
                        "slot": slot,
                        "epoch": epoch,
                        "active": active[slot],
                        "leaves": host.gives_away(slot),
                    }
                    for slot, epoch in sorted(host.epochs.items())
                ]
        return found

    def _cell_rows(self, which: str, permits: Rights | None) -> list[Row]:
        """Tell of the entities of a type, or of all, that live here."""
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
            if which in ("", name) and _may_look(permits, name)
            for cell in list(host.cells.values())
        ]

    async def _event_rows(self, which: str, permits: Rights | None) -> list[Row]:
        """Tell the latest events of one entity, by `TYPE/KEY`, if this node owns it."""
        name, _, key = which.partition("/")
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
                "number": each.number,
                "time": Entry.moment(each.time_ms).isoformat(timespec="milliseconds"),
                "kind": each.kind,
                "version": each.version,
                "epoch": each.epoch,
                "position": each.position,
                "fields": each.body,
            }
            for each in recent
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
            WrongArgument: that is no entity class, or an argument is of another kind.
            WrongValue: this node does not know where the events of the type are.
        """
        name = stored_name(cls) if isinstance(cls, str) and cls else type_name(cls)
        require(state is None or isinstance(state, str), "state is a text", state)
        for what, value in (("follow", follow), ("raw", raw)):
            require(type(value) is bool, f"{what} is True or False", value)
        checked_count(after, "after")
        host = self._hosts.get(name)
        url = state if state is not None else self._urls.get(name)
        if url is None:
            where = (
                "is hosted without a state" if host else f"is not hosted on {self.runtime.name}"
            )
            step = "host it with state=…" if host else "give its state: journal(…, state=…)"
            msg = f"{name} {where}, so its journal is not known here; {step}"
            raise WrongValue(msg)
        kind = EntityType(cls) if isinstance(cls, type) else host.type if host else None
        decoder = EntryDecoder(self.form, name, kind, is_raw=raw)
        named = checked_reader(reader)
        return Journal(self, url, name, decoder, after=after, follow=follow, reader=named)

    async def parked_reminders(self, cls: object, state: str | None) -> list[ParkedReminder]:
        """Return the reminders of a type that no host delivers any more.

        Raises:
            WrongArgument: that is no entity class, or the state is no text.
            WrongValue: this node does not know where the reminders of the type are.
        """
        name, url = self._place_of(cls, state)
        found = await called(await self.state(url), EntityState.parked_reminders, name)
        read = self.form.read_or_show
        return [
            ParkedReminder(each.key, each.name, Entry.moment(each.due_ms), read(each.body))
            for each in found
        ]

    async def start_reminders(
        self, cls: object, key: str, reminder: str | None, state: str | None
    ) -> int:
        """Let parked reminders of an entity be due now; returns how many.

        Raises:
            WrongArgument: that is no entity class, key, name or state.
            WrongValue: this node does not know where the reminders of the type are.
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
            msg = f"{name} has no state that is known on {self.runtime.name}; give its state=…"
            raise WrongValue(msg)
        return name, url

    async def view(self, url: str) -> StateClient:
        """Return what reads a state, opened once for the node."""
        client: StateClient = await self._open(self._views, url, open_view)
        return client

    async def state(self, url: str) -> StateClient:
        """Return what reads and writes a state, opened once for the node."""
        client: StateClient = await self._open(self._states, url, open_state)
        return client

    def followed(self, name: str, node: bytes, *, is_leaf: bool) -> EntityTable | None:
        """Tell a node when the journal of a type grows, if this one hosts it."""
        if node and name in self._hosts:
            self.growth.add(name, node)
        return self.table_for_leaf(name) if is_leaf else self.table(name)

    # --- owners ---

    def put_away(self, type_name: str, key: str) -> None:
        """Let an entity be put away by its owner."""
        node = self.owner(type_name, key)
        if node == self.runtime.node_id:
            self.put_away_here(type_name, key)
        elif node:
            self.runtime.ref_of(node, ENTITIES).tell(StopEntity(type_name, key))

    def put_away_here(self, type_name: str, key: str) -> None:
        """Put an entity of this node away, behind what it was sent."""
        host = self._hosts.get(type_name)
        if host is not None and (cell := host.cells.get(key)) is not None:
            host.put_away(cell)

    def error_of_unsent(self, type_name: str, key: str, asker: Any) -> BaseException | None:
        """Return why an ask was never sent to an owner; None if it was."""
        sender = self._senders.get(type_name)
        return None if sender is None else sender.error_of_unsent(key, slot_of(key), asker)

    def owner(self, type_name: str, key: str) -> bytes:
        """Return the node that owns an entity, as far as is known here."""
        host, slot = self._hosts.get(type_name), slot_of(key)
        if host is not None and host.serves(slot):
            own: bytes = self.runtime.node_id
            return own
        sender = self._senders.get(type_name)
        return b"" if sender is None else sender.table.node_of(slot)

    # --- the end ---

    async def drain(self, deadline: Deadline) -> None:
        """Move all slots to the other members while there is time.

        All types begin at once: they take turns (`MoveTurns`), and one whose entities do not
        come to rest gives its turn back, so it does not use up the time of the others.
        """
        moves = [(name, owned.start_drain()) for name, owned in list(self._owned.items())]
        for name, move in moves:
            await self._in_time(move, deadline)
            passed_on: Future[None] = Future()
            self._sender(name).when_idle(partial(passed_on.set_result, None))
            await self._in_time(passed_on, deadline)

    async def close(self, deadline: Deadline) -> None:
        """Commit what is under way, and give all slots to the other members.

        Activations that have not ended when half of the time is over are killed, so that those
        slots are given away as well.
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
                host.kill_all("its node was closed while it did not come to rest")
        for name, _ in hosts:
            owned = self._owned.get(name)
            if owned is not None:
                await self._in_time(owned.start_leaving(), deadline)

    async def _in_time(self, change: Future[None], deadline: Deadline) -> None:
        """Await a change as long as there is time; what is left goes when the node ends."""
        waiter: Future[None] = Future()
        change.on_done(lambda done: waiter.set_result(None))
        late = OutcomeUnknown("slots are left")
        with suppress(StorageError):
            await self.runtime.in_time(waiter, deadline.left(), late)

    def release(self) -> None:
        """Close states and leases; on a thread that may block."""
        if self._stop_listening is not None:
            self._stop_listening()
        for held in self._held.values():
            held.close()
        for opened in (self._states, self._leases, self._views):
            for client in opened.values():
                client.close()
            opened.clear()


def _may_look(permits: Rights | None, type_name: str) -> bool:
    """Return whether rights include looking at a type."""
    return permits is None or permits.permit("entities", type_name)


def place_of(url: str | None) -> str:
    """Return where a state is, without a password; "" for nowhere."""
    if url is None or "://" not in url:
        return url or ""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
