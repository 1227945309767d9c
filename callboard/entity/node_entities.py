"""The entities of a node: hosted types, routes to other nodes, inspection, journals."""

from collections.abc import Callable, Container, Coroutine, Iterable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import urlsplit

from callboard import locks
from callboard.arguments import count as checked_count
from callboard.arguments import require
from callboard.entity.cell import EntityCell
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
from callboard.entity.inspection.tables import EntityTables
from callboard.entity.journal.entry import Entry, EntryDecoder
from callboard.entity.journal.growth import JournalGrowth
from callboard.entity.journal.journal import Journal, checked_reader
from callboard.entity.machine.table import SLOTS, SharedState, Table, TableMember, slot_of
from callboard.entity.memberships import Memberships
from callboard.entity.messages import (
    AskEntityTable,
    EntityTable,
    NotOwner,
    StopEntity,
)
from callboard.entity.ownership import (
    called,
    wrong_state,
)
from callboard.entity.reentrancy import would_deadlock
from callboard.entity.reference import EntityRef
from callboard.entity.reminders import ParkedReminder
from callboard.entity.router import PendingMessage, TypeRouter
from callboard.entity.server import ArrivedMessage, EntityServer, Inbound
from callboard.entity.state.client import StateClient
from callboard.entity.state.databases import Databases
from callboard.entity.state.interface import EntityState
from callboard.entity.state.member_links import MemberLinks
from callboard.entity.unpersisted import is_wanted
from callboard.kernel.activation import CHAIN_LIMIT, Envelope
from callboard.kernel.codec import (
    PayloadCodec,
)
from callboard.kernel.context import NodeContext
from callboard.kernel.errors import WrongValue
from callboard.kernel.reply import Asker, Future, Sender
from callboard.kernel.shutdown import Deadline
from callboard.kernel.topology import ENTITIES, Topology
from callboard.kernel.tracing import INSTRUMENTATION
from callboard.lease.errors import (
    OutcomeUnknown,
    StateCorrupt,
    StateVersion,
    StorageError,
)
from callboard.support.keyed_name import QUEUE_PREFIX

if TYPE_CHECKING:
    from callboard.entity.queue.work_queue import WorkQueue

T = TypeVar("T")

#: Seconds that other nodes have to answer which table they know, before this node hosts a type.
ASK_SECONDS: Final = 1.0

#: Types that a node routes to for leaves; a leaf may name any type that its rights match.
TYPES_LIMIT: Final = 1_000


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
        """Create the registry of a node, without types.

        Args:
            runtime: the runtime of the node.
            runner: the runner of the node.
            codec: serializer of messages.
            overlay: knows the reachable nodes.
            start: runs a coroutine on the node's loop.
            wait: runs a coroutine to its end on behalf of a thread that may block.
        """
        self.start, self.wait = start, wait
        #: Notifies followers of journals.
        self.growth = JournalGrowth(runtime, overlay.nodes)
        self.runtime: Any = runtime
        #: Serializer of events and jobs.
        self.form = EventSerializer(codec)
        self.overlay = overlay
        self._hosts: dict[str, EntityHost] = {}
        self.hosted: Container[str] = self._hosts.keys()
        self._routers: dict[str, TypeRouter] = {}
        #: By hosted type: the URL of its state.
        self._urls: dict[str, str | None] = {}
        self._joining: set[str] = set()
        self._queues: dict[str, WorkQueue] = {}
        self._has_queue_tables = False
        #: By type of a singleton: the arguments that it is hosted with.
        self._hosted_as: dict[str, Any] = {}
        self._lock = locks.lock("entities of a node", 510)
        #: The name of this node's life in fences and in the table.
        self.writer = f"{runtime.node_id.hex()}-{runner.random.getrandbits(32):08x}"
        self._inbound = Inbound(runtime, self._hosts, self._router, self.table)
        self._host_node = HostNode(
            runtime,
            runner,
            self.writer,
            self.form,
            self._ref,
            self._inbound.send_back,
            is_checked=is_wanted(runner),
            address=overlay.own_address,
        )
        links = MemberLinks(runtime, overlay)
        parts = self._router, self._inbound.forget, links
        self.memberships = Memberships(self._host_node, *parts)
        on_news = self.memberships.handle_news
        self._databases = Databases(runtime, runner, self.writer, on_news, links)
        INSTRUMENTATION.use_outboxes()  # cells of entities have them
        EntityTables(runtime, self._hosts, self.stats).add_to(overlay)
        runtime.start_actor(EntityServer, (self._inbound, self), number=ENTITIES)

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
        """Host a class. `urls` are the URLs of its state and of its leases."""
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
            self.memberships.remove(name)
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
        if not self._has_queue_tables:
            from callboard.entity.queue.queue_tables import QueueTables

            self._has_queue_tables = True
            QueueTables(self._hosts).add_to(self.overlay)
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
        client = None if state is None else await self._databases.state(state)
        router, on_growth = self._router(name), partial(self.growth.record, name)
        hosted = HostedType(kind, arguments, client, on_growth, on_ended)
        self._urls[name] = state
        if leases is None:
            host = EntityHost(self._host_node, hosted, router)
            await self._refuse_second(name)
            host.serve(dict.fromkeys(range(SLOTS), 1))
            self._hosts[name] = host
            router.flush()
            return
        register = await self._databases.register(leases)
        lease = self._databases.lease(leases)
        owned = self.memberships.create(hosted, leases, register, lease)
        shared = SharedState()
        if client is not None:
            shared = SharedState(*await called(client, EntityState.identity))
            owned.host.reminders.set_clock(await called(client, EntityState.clock))
        await self._refuse_other_state(name, shared)
        self._hosts[name] = owned.host
        await self.memberships.join(name, owned, shared)

    async def _refuse_second(self, name: str) -> None:
        """Check that no other node hosts a type, which is to be hosted without leases.

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
        """Check that no reachable node hosts a type with another state.

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
        """Send a message to an entity. Can be called from any thread; never blocks."""
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
            # Otherwise the host would hold the message again that it has just forwarded.
            return False
        if not waiting.key:
            return host.accept_marker(waiting.slot, waiting.message)
        sender, is_urgent = waiting.sender, waiting.is_urgent
        return host.deliver(waiting.key, waiting.message, sender, is_urgent=is_urgent)

    def route_for_leaf(self, arrived: ArrivedMessage) -> NotOwner | None:
        """Route a message of a leaf to its owner."""
        name, key, message, sender, is_urgent = arrived
        if name not in self._routers and len(self._routers) >= TYPES_LIMIT:
            return NotOwner()
        self.route(name, key, message, sender, is_urgent=is_urgent)
        return None

    def table_for_leaf(self, name: str) -> EntityTable:
        """Return a table for a leaf, in which this node owns all slots."""
        members = {self.writer: TableMember(self.runtime.node_id.hex())}
        table = Table(1, members=members).filled()
        return EntityTable(name, table.version, table.text())

    def table(self, name: str, asker: Sender | None = None) -> EntityTable | None:
        """Return the table of a hosted type, and send later tables to the asking node."""
        host = self._hosts.get(name)
        if host is None:
            return None
        node = b"" if asker is None else asker.node
        if node:
            self.memberships.add_asker(name, node)
        owned = self.memberships.get(name)
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
        owned = self.memberships.get(table.type_name)
        if owned is not None:
            owned.table_announced(table.version)
        # The router can use the table before it is confirmed by the register, because a node
        # that does not own a slot refuses messages for it.
        self._routers[table.type_name].receive_table(table)

    # --- inspection ---

    def stats(self) -> list[EntityStats]:
        """Return the figures of the hosted types. Can be called from any thread."""
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
        require(state is None or isinstance(state, str), "state must be a text", state)
        for argument, value in (("follow", follow), ("raw", raw)):
            require(type(value) is bool, f"{argument} must be True or False", value)
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
        """Make the parked reminders of an entity due now; return their number.

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
        require(state is None or isinstance(state, str), "state must be a text", state)
        url = state if state is not None else self._urls.get(name)
        if url is None:
            msg = f"{self.runtime.name} does not know the state of {name}; give state=…"
            raise WrongValue(msg)
        return name, url

    async def view(self, url: str) -> StateClient:
        """Return a read-only client of a state, opened once for the node."""
        return await self._databases.view(url)

    async def state(self, url: str) -> StateClient:
        """Return a client of a state, opened once for the node."""
        return await self._databases.state(url)

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

    def error_of_unsent(self, type_name: str, key: str, asker: Asker) -> BaseException | None:
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

        All types start together and take turns (`MoveTurns`). A type that cannot stop its slots
        ends its turn early, so that it does not use up the time of the others.
        """
        moves = [(name, owned.start_drain()) for name, owned in self.memberships.items()]
        for name, move in moves:
            await self._in_time(move, deadline)
            forwarded: Future[None] = Future()
            self._router(name).when_idle(partial(forwarded.set_result, None))
            await self._in_time(forwarded, deadline)

    async def close(self, deadline: Deadline) -> None:
        """Commit pending changes, and give all slots to the other members.

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
            owned = self.memberships.get(name)
            if owned is not None:
                await self._in_time(owned.start_leaving(), deadline)

    async def _in_time(self, change: Future[None], deadline: Deadline) -> None:
        """Await a change until a deadline.

        Slots that are not given away by then become free when the node's lease ends.
        """
        waiter: Future[None] = Future()
        change.on_done(lambda done: waiter.set_result(None))
        late = OutcomeUnknown("slots are left")
        with suppress(StorageError):
            await self.runtime.in_time(waiter, deadline.left(), late)

    def release(self) -> None:
        """Close states and leases; on a thread that may block."""
        self.memberships.release()
        self._databases.release()


def place_of(url: str | None) -> str:
    """Return the URL of a state without user and password; "" without a state."""
    if url is None or "://" not in url:
        return url or ""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
