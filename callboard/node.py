"""The public `Node`: a node of `callboard.proxies` with the methods of higher layers.

The facade, the simulation, the command line and all other packages use this class, so every
node has these methods, including those in worker processes.
"""

import contextlib
import ssl
from collections.abc import Mapping, Sequence
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Final,
    TypedDict,
    TypeVar,
    Unpack,
    cast,
)

from callboard import locks
from callboard.actors.actor import Actor
from callboard.actors.errors import CallboardError, NodeClosed, WrongValue
from callboard.actors.reference import ActorRef, checked_ref
from callboard.actors.waits.shutdown import STEP_SECONDS, CloseStep, Deadline
from callboard.arguments import count as checked_count
from callboard.arguments import require
from callboard.arguments import seconds as checked_seconds
from callboard.basp.errors import MalformedPayload
from callboard.basp.header import INSPECTOR, LOG_INTAKE, LOG_SERVICE
from callboard.closing import blocking_twin
from callboard.kernel.wire import NodeWire
from callboard.proxies import node
from callboard.proxies.environment import NodeEnvironment
from callboard.proxies.link.limits import Limits
from callboard.proxies.messages import BackUpNode, Spawn
from callboard.proxies.names.search import CONNECT_TIMEOUT
from callboard.proxies.rights.permissions import Secrets
from callboard.proxies.rights.rights import Rights
from callboard.support.calls import Keywords
from callboard.support.slots import NODE_PARTS, NODE_WIRES
from callboard.tls.certificates import Certificates, TlsSource
from callboard.tls.contexts import Tls

if TYPE_CHECKING:
    from callboard.entity.inspection.figures import EntityStats
    from callboard.entity.journal.journal import Journal
    from callboard.entity.node_entities import Entities
    from callboard.entity.queue.work_queue import WorkQueue
    from callboard.entity.reminders import ParkedReminder
    from callboard.log_service.flight_process import FlightProcess
    from callboard.log_service.log_service import ServedLog

__all__ = ["Node"]

A = TypeVar("A", bound=Actor)

#: Seconds that closing a node waits for entities to commit and move.
CLOSE_ENTITIES: Final = 6.0

#: Bytes of the ids of nodes of other protocols; our own have 18.
FOREIGN_ID_SIZE: Final = 24

#: Held while the `Entities` of a node are created.
_ENTITIES_LOCK: Final = locks.lock("making of a node's entities", 130)


class NodeOptions(TypedDict, total=False):
    """Options of every node; see `callboard.proxies.node.Node`."""

    spawnable: Mapping[str, type[Actor]] | None
    join: Sequence[str]
    secret: Secrets | None
    secrets: Mapping[str, Secrets] | None
    permissions: Mapping[str, Rights] | None
    allow_unsealed: bool
    tls: TlsSource | ssl.SSLContext | None
    encrypt: bool
    limits: Limits | None
    is_tool: bool
    surroundings: NodeEnvironment | None
    serve_logs: Mapping[str, Any] | None


class ListenOptions(TypedDict, total=False):
    """Options of `Node.listen`; see `callboard.proxies.node.Node.listen`."""

    publish: ActorRef | None
    tls: TlsSource | ssl.SSLContext | None
    secret: Secrets | None
    secrets: Mapping[str, Secrets] | None
    permissions: Mapping[str, Rights] | None
    allow_unsealed: bool | None
    encrypt: bool | None
    insecure: bool


class Node(node.Node):
    """A container for actors that can be linked to other nodes.

    It runs in the background as soon as it is created, and opens no port before `listen`. Use
    it as a context manager, or call `close`. All methods may be called from any thread.
    Each blocking method has an awaitable twin whose name begins with `a`.
    """

    worker_class: ClassVar[str] = "callboard.node:Node"

    def __init__(
        self,
        name: str = "",
        *,
        dashboard: bool | str = False,
        actions: bool = False,
        **options: Unpack[NodeOptions],
    ) -> None:
        """Create a node.

        Args:
            name: a name for people: in logs, displays and errors.
            dashboard: open the dashboard at a free port of 127.0.0.1, or at a `HOST:PORT`;
                needs the extra `dashboard`.
            actions: let the dashboard stop actors and send messages to them.
            options: see `callboard.proxies.node.Node`, which also lists further errors.

        Raises:
            DashboardError: the dashboard cannot be opened.
        """
        self._node_wires: dict[str, NodeWire] = {}
        self._flight: FlightProcess | None = None
        self._entities: Entities | None = None
        self._dashboard: Any = None
        super().__init__(name, **options)
        if dashboard:
            page = NODE_PARTS.load("dashboard")  # a higher layer that few programs need
            listen = dashboard if isinstance(dashboard, str) else "127.0.0.1:0"
            try:
                self._dashboard = page(self, listen, actions=actions)
            except BaseException:
                self.close()
                raise

    @property
    def dashboard_url(self) -> str:
        """The link that opens the dashboard of this node in a browser; contains its token.

        Raises:
            WrongValue: the node has no dashboard.
        """
        if self._dashboard is None:
            msg = f"{self.name} has no dashboard; create it with Node(dashboard=True)"
            raise WrongValue(msg)
        link: str = self._dashboard.link
        return link

    def _register_end(self) -> None:
        """Register the shutdown steps for entities, the dashboard and files."""
        super()._register_end()
        shutdown = self.runtime.shutdown
        shutdown.add_drain_step(self._move_entities)
        shutdown.add_close_step(CloseStep.PAGES, self._close_page)
        shutdown.add_close_step(CloseStep.ENTITIES, self._close_entities)
        shutdown.add_close_step(CloseStep.FILES, self._release_files)

    async def _move_entities(self, deadline: Deadline) -> None:
        """Hand the slots of this node to other members, a few at a time."""
        if self._entities is not None:
            await self._start(self._entities.drain(deadline))

    def _close_page(self, _: Deadline) -> None:
        """Close the dashboard."""
        if self._dashboard is not None:
            self._dashboard.close()

    def _close_entities(self, deadline: Deadline) -> None:
        """Commit pending work of entities, and move their slots to other members."""
        if self._entities is not None:
            seconds = deadline.left(STEP_SECONDS, CLOSE_ENTITIES)
            part = Deadline.after(self.runtime.now, seconds)
            with contextlib.suppress(CallboardError):
                self._start(self._entities.close(part)).result(seconds + STEP_SECONDS)

    def _release_files(self, _: Deadline) -> None:
        """Release states and leases, and close the process that serves logs."""
        if self._entities is not None:
            self._entities.release()
        if self._flight is not None:
            self._flight.close()

    # --- other protocols between nodes ---

    def _node_wire(self, name: str) -> NodeWire:
        """Return the protocol with a name, created on first use.

        Raises:
            WrongValue: there is no such protocol.
        """
        self._refuse_closed()
        try:
            wire_class: Any = NODE_WIRES.load(name)
        except LookupError:
            names = ", ".join(["basp", *NODE_WIRES.names()])
            msg = f"{name!r:.80} is not a protocol of nodes; choose one of {names}"
            raise WrongValue(msg) from None
        tls = self._encryption if isinstance(self._encryption, Certificates) else None
        with _ENTITIES_LOCK:
            kind = wire_class.kind
            if kind not in self._node_wires:
                self._node_wires[kind] = wire_class(self, tls)
        return self._node_wires[kind]

    def _wire_of(self, address: object) -> NodeWire | None:
        """Return the protocol of an address; None for BASP."""
        scheme, mark, _ = address.partition(":/") if isinstance(address, str) else ("",) * 3
        return self._node_wire(scheme) if mark and scheme in NODE_WIRES.names() else None

    def listen(
        self,
        address: str = "127.0.0.1",
        port: int = 0,
        *,
        wire: str = "basp",
        interface: Sequence[str] = (),
        **options: Unpack[ListenOptions],
    ) -> int:
        """Accept links on a port; return the port (0 picks a free one).

        Args:
            address: local address; a public one needs `tls`, a secret, or `insecure=True`.
            port: TCP port; none for a Unix socket.
            wire: the protocol of the port: `basp` for nodes of callboard, `caf-0.17` for nodes
                of the C++ Actor Framework, which know no secrets and permissions.
            interface: signatures of the published actor for the wire of CAF, such as
                `caf::replies_to<@i32>::with<@i32>`; empty for an untyped actor.
            options: see `callboard.proxies.node.Node.listen`.

        Raises:
            PortUnavailable: the address is not on this machine, or the port is taken.
            PublicAddress: other machines can reach the port, and nothing guards it.
            WrongValue: the protocol is unknown, or has no such option.
        """
        if wire == "basp":
            return super().listen(address, port, **options)
        other = self._node_wire(wire)
        unfit = sorted(options.keys() - {"publish", "tls", "insecure"})
        if unfit:
            msg = f"the wire {wire!r} has no {', '.join(unfit)}; omit them"
            raise WrongValue(msg)
        publish, tls = options.get("publish"), options.get("tls")
        if publish is not None:
            checked_ref(publish, "listen(publish=…)")
        return other.listen(
            address,
            port,
            publish=publish,
            interface=tuple(interface),
            tls=tls,
            insecure=options.get("insecure", False),
        )

    async def aconnect(self, address: str, timeout: float = CONNECT_TIMEOUT) -> bytes:
        """Awaitable twin of `connect`."""
        wire = self._wire_of(address)
        if wire is None:
            return await super().aconnect(address, timeout)
        with self.runtime.shutdown.ending():
            return await wire.connect(address, checked_seconds(timeout))

    async def aremote_actor(self, address: str, timeout: float = CONNECT_TIMEOUT) -> ActorRef:
        """Awaitable twin of `remote_actor`."""
        wire = self._wire_of(address)
        if wire is None:
            return await super().aremote_actor(address, timeout)
        with self.runtime.shutdown.ending():
            return await wire.remote_actor(address, checked_seconds(timeout))

    async def _spawn_on(self, on: str | bytes, request: Spawn) -> ActorRef[Actor]:
        """Spawn an actor on another node, by the protocol of its address."""
        wire = self._wire_of(on)
        if wire is None:
            return await super()._spawn_on(on, request)
        kwargs = request.kwargs
        require(not kwargs, "an actor of another protocol takes no keyword arguments", kwargs)
        return await wire.spawn(str(on), request.name, request.args, CONNECT_TIMEOUT)

    def disconnect(self, node_id: bytes, seconds: float = 3.0) -> None:
        """Cut the link with a neighbor and refuse it for some seconds, to test failures.

        The link with a node of another protocol ends for good, until the next `connect`.
        """
        value: object = node_id
        if isinstance(value, bytes) and len(value) == FOREIGN_ID_SIZE:
            for wire in list(self._node_wires.values()):
                wire.disconnect(node_id)
            return
        super().disconnect(node_id, seconds)

    # --- entities ---

    @property
    def _all_entities(self) -> "Entities":
        """The entities that this node hosts or uses, created on first use."""
        if self._entities is None:
            self._refuse_closed()
            from callboard.entity.node_entities import Entities

            with _ENTITIES_LOCK:
                if self._entities is None:
                    parts = self.runtime, self.runner, self.codec, self.overlay
                    self._entities = Entities(*parts, self._start, self._wait)
        return self._entities

    def host(
        self,
        entity_class: type[Any],
        *args: Any,
        state: str | None = None,
        leases: str | None = None,
        **kwargs: Any,
    ) -> None:
        """Host entities of a class on this node; return when the node is a member.

        Args:
            entity_class: a subclass of `Entity`.
            args: arguments of its `__init__`, the same for every key.
            state: the database of events, `sqlite:FILE` or `postgresql://…`; None to
                store no events.
            leases: the database that decides which node owns a slot, as for `state`, or
                `etcd://HOST:PORT`; the database of `state` by default.
            kwargs: keyword arguments of its `__init__`.

        Raises:
            DuplicateEntityType: a class of that name is already hosted here.
            InvalidHandler: two `@event` methods of the class handle the same events.
            NeedsLeases: another node hosts it, and neither state nor leases are given.
            StorageError: the database cannot be used; or, as `WrongState`, it is not the
                database of the other members.
        """
        self._wait(self.ahost(entity_class, *args, state=state, leases=leases, **kwargs))

    async def ahost(
        self,
        entity_class: type[Any],
        *args: Any,
        state: str | None = None,
        leases: str | None = None,
        **kwargs: Any,
    ) -> None:
        """Awaitable twin of `host`."""
        entities = self._all_entities
        with self.runtime.shutdown.ending():
            await entities.host(entity_class, args, kwargs, state, leases)

    def singleton(
        self,
        entity_class: type[A],
        key: str,
        *args: Any,
        state: str | None = None,
        leases: str | None = None,
        **kwargs: Any,
    ) -> ActorRef[A]:
        """Host a class, and keep one entity of it active, on one node at a time.

        The entity is activated as soon as a node owns its slot, before any message arrives, and
        stays active without messages. When its node is lost, another node that called this
        method activates it. Call it once for each key.

        Args:
            entity_class: a subclass of `Entity`; its `activated` may start endless tasks.
            key: a text of 1 to 256 bytes.
            args: arguments of its `__init__`.
            state: the database of events, as for `host`.
            leases: the database of leases, as for `host`.
            kwargs: keyword arguments of its `__init__`.

        Returns:
            The ref of the entity.

        Raises:
            DuplicateEntityType: the class is hosted here by `host` or with other arguments.
            NeedsLeases: another node hosts it, and neither state nor leases are given.
            StorageError: the database cannot be used; or, as `WrongState`, it is not the
                database of the other members.
            WrongArgument: the class is not an entity class, or the key is not a string.
            WrongValue: the key is empty or too long.
        """
        return self._wait(
            self.asingleton(entity_class, key, *args, state=state, leases=leases, **kwargs)
        )

    async def asingleton(
        self,
        entity_class: type[A],
        key: str,
        *args: Any,
        state: str | None = None,
        leases: str | None = None,
        **kwargs: Any,
    ) -> ActorRef[A]:
        """Awaitable twin of `singleton`."""
        entities, kind = self._all_entities, cast("type[Any]", entity_class)
        with self.runtime.shutdown.ending():
            return await entities.singleton(kind, key, args, kwargs, state, leases)

    def queue(
        self,
        name: str,
        *,
        state: str | None = None,
        leases: str | None = None,
        attempts: int = 5,
        limit: int = 1_000_000,
    ) -> "WorkQueue":
        """Return a durable work queue, in which any node may put and take jobs.

        Args:
            name: name of the queue, the same on every node.
            state: the database of jobs, `sqlite:FILE` or `postgresql://…`, so that this node
                may own the queue. With None, other nodes own it.
            leases: the database that decides which node owns it; that of `state` by default.
            attempts: number of attempts to process a job before it is dead.
            limit: maximum number of jobs; `put` then fails with `QueueFull`.

        Raises:
            DuplicateEntityType: the queue is owned here with another state or other limits.
            StorageError: the database cannot be used; or, as `WrongState`, it is not the
                database of the other nodes.
            WrongArgument: an argument has the wrong type, or `leases` is given without `state`.
            WrongValue: the name is empty, too long, or has spaces or `/`; a number is below 1.
        """
        if state is None and leases is None:  # does not block, so handlers may call it
            return self._all_entities.queue(name)
        return self._wait(
            self.aqueue(name, state=state, leases=leases, attempts=attempts, limit=limit)
        )

    async def aqueue(
        self,
        name: str,
        *,
        state: str | None = None,
        leases: str | None = None,
        attempts: int = 5,
        limit: int = 1_000_000,
    ) -> "WorkQueue":
        """Awaitable twin of `queue`."""
        require(
            isinstance(state, str | None), "state must be a text, like 'sqlite:a.db'", state
        )
        fits = leases is None or state is not None
        require(fits, "leases decide who owns a queue; give its state as well", leases)
        limits = checked_count(attempts, "attempts", 1), checked_count(limit, "limit", 1)
        if state is not None:
            entities = self._all_entities
            with self.runtime.shutdown.ending():
                await entities.host_queue(name, state, leases, *limits)
        return self._all_entities.queue(name)

    def entity(self, entity_class: "type[A] | str", key: str) -> ActorRef[A]:
        """Return the ref of an entity, which its first message activates.

        Args:
            entity_class: the class of the entity, or the name of its type.
            key: a text of 1 to 256 bytes.

        Raises:
            WrongArgument: the class is not an entity class, or the key is not a string.
            WrongValue: the key is empty or too long.
        """
        return self._all_entities.entity(entity_class, key)

    def _entity_named(self, type_name: str, key: str) -> ActorRef:
        """Return the ref of an entity that is named in a message from another node."""
        try:
            return self._all_entities.entity(type_name, key)
        except NodeClosed as error:
            raise MalformedPayload(str(error)) from None

    def entity_stats(self) -> "list[EntityStats]":
        """Return the statistics of each entity type that this node hosts."""
        return [] if self._entities is None else self._entities.stats()

    def journal(
        self,
        entity_class: type[Any] | str,
        *,
        after: int = 0,
        follow: bool = False,
        state: str | None = None,
        reader: str | None = None,
        raw: bool = False,
    ) -> "Journal":
        """Return an iterator over all events of a type in the order of their commits.

        `for entry in node.journal(Cart)`, or `async for`; the first read opens the state.

        Args:
            entity_class: the class of the entities, or the name of their type.
            after: the position after which to begin.
            follow: whether to wait for further events, until the journal is closed.
            state: the database of the events, if this node does not host the type.
            reader: a name under which `journal.done()` stores the position in the state; the
                next journal with this name begins there.
            raw: whether to return events as `RawEvent`, without their classes.

        Raises:
            WrongArgument: the class is not an entity class, or an argument has the wrong type.
            WrongValue: no database is given or known for the type.
        """
        return self._all_entities.journal(
            entity_class, after=after, follow=follow, state=state, reader=reader, raw=raw
        )

    async def aparked_reminders(
        self, entity_class: type[Any] | str, *, state: str | None = None
    ) -> "list[ParkedReminder]":
        """Return the reminders of a type that hosts no longer deliver.

        A reminder is parked when three processes in a row have ended while its handler ran.

        Args:
            entity_class: the class of the entities, or the name of their type.
            state: the database of the type, if this node does not host it.

        Raises:
            StorageError: the state cannot be used.
            WrongArgument: the class is not an entity class.
            WrongValue: no database is given or known for the type.
        """
        entities = self._all_entities
        with self.runtime.shutdown.ending():
            return await entities.parked_reminders(entity_class, state)

    parked_reminders = blocking_twin(aparked_reminders)

    async def astart_reminders(
        self,
        entity_class: type[Any] | str,
        key: str,
        name: str | None = None,
        *,
        state: str | None = None,
    ) -> int:
        """Make parked reminders of an entity due now; return their number.

        The owner delivers them within 30 seconds, or immediately if it is this node.

        Args:
            entity_class: the class of the entities, or the name of their type.
            key: key of the entity.
            name: name of the reminder; None for all reminders of the entity.
            state: the database of the type, if this node does not host it.

        Raises:
            StorageError: the state cannot be used.
            WrongArgument: the class, key or name has the wrong type.
            WrongValue: no database is given or known for the type.
        """
        entities = self._all_entities
        with self.runtime.shutdown.ending():
            return await entities.start_reminders(entity_class, key, name, state)

    start_reminders = blocking_twin(astart_reminders)

    def ref(self, text: str) -> ActorRef:
        """Return the ref of an actor or entity from its text. Never blocks or dials.

        Raises:
            InvalidAddress: the text is not `basp://HOST:PORT/ID@NODE`, `basp:///ID@NODE` or
                `basp:///TYPE/KEY`.
        """
        value: object = text
        if isinstance(value, str) and value.startswith("basp:///") and "/" in value[8:]:
            from callboard.entity.reference import entity_parts

            parts = entity_parts(text)
            if parts is not None:
                return self._all_entities.entity(*parts)
        return super().ref(text)

    def _start_parts(self, limits: Limits, logs: Mapping[str, Any] | None) -> None:
        """Start the actors that every node has, and the ones for logs."""
        self._logs: dict[str, Any] = {}
        if logs is not None:  # otherwise the package for logs is not imported
            from callboard.log_service.log_service import checked_logs

            self._logs = checked_logs(logs)
        super()._start_parts(limits, logs)
        self.codec.names_to_ref = self._entity_named
        if self._logs:
            from callboard.log_service.append_server import AppendServer
            from callboard.log_service.log_service import LogService

            parts = (self._logs, self.overlay, limits.payload)
            self.runtime.start_actor(LogService, parts, number=LOG_SERVICE)
            self.runtime.start_actor(AppendServer, parts, number=LOG_INTAKE)

    def listen_logs(self, listen: str = "127.0.0.1:0", *, tls: Tls | None = None) -> str:
        """Serve the logs of `serve_logs` by Arrow Flight, too; return the address.

        A separate process serves them. This node restarts it when it ends, and ends it when the
        node closes. The node's secrets are the tokens, and its permissions apply.

        Args:
            listen: `HOST:PORT`; port 0 picks a free one. A public address needs a secret of
                the node, and `tls`.
            tls: the certificate; after its renewal the listener is opened again.

        Raises:
            ExtraMissing: pyarrow is not installed.
            PublicAddress: other machines can reach the address, but it has no secret or TLS.
            PortUnavailable: the port cannot be opened.
            ValueError: there are no logs, a log is in memory, or they are already served.
        """
        self._refuse_closed()
        if self._flight is not None:
            msg = f"the logs are already served at {self._flight.address}"
            raise WrongValue(msg)
        access = self._connector.options.access
        from callboard.log_service.flight_process import FlightProcess
        from callboard.log_service.log_service import real_folders

        self._flight = FlightProcess(real_folders(self._logs), listen, access, tls)
        return self._flight.address

    @property
    def serves_by_flight(self) -> bool:
        """Whether `listen_logs` was called."""
        return self._flight is not None

    @property
    def logs_address(self) -> str:
        """The address of `listen_logs`; the address of a log is this followed by "/NAME".

        Raises:
            ValueError: `listen_logs` was not called.
        """
        if self._flight is None:
            msg = f"{self.name} serves no logs by Flight; call node.listen_logs() first"
            raise WrongValue(msg)
        return self._flight.address

    def served_logs(self) -> "list[ServedLog]":
        """Return the logs that other nodes may read here, and the progress of their readers."""
        cell = self.runtime.contexts.get(LOG_SERVICE)
        return [] if cell is None else cell.actor.served()


def ask_for_backup(node: Node, peer: bytes, folder: str, token: str) -> Keywords:
    """Have another node back up the files of its process; return the summary when it is done.

    Args:
        node: the node that asks.
        peer: id of the other node.
        folder: the unfinished folder of the backup; see `callboard.backup.service`.
        token: the content of the file `request` in it.

    Raises:
        RemoteError: the backup could not be made.
        NotPermitted: this node has limited rights at the other one.
    """
    inspector = node.runtime.ref_of(peer, INSPECTOR)
    summary: Keywords = inspector.ask(BackUpNode(folder, token)).result()
    return summary
