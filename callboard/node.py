"""The public `Node`: a node of `callboard.proxies`, and what the rooms above add to it.

The facade, the simulation, the command line and every other room take the class from here, so
that a method added here is there wherever a node is made, in worker processes too.
"""

import contextlib
import ssl
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypedDict, TypeVar, Unpack, cast

from callboard import locks
from callboard.actors.actor import Actor
from callboard.actors.errors import CallboardError, NodeClosed, WrongValue, require
from callboard.actors.reference import ActorRef
from callboard.actors.seconds import count as checked_count
from callboard.actors.waits.shutdown import STEP_SECONDS, CloseStep, Deadline
from callboard.basp.errors import MalformedPayload
from callboard.basp.header import LOG_INTAKE, LOG_SERVICE
from callboard.proxies import node
from callboard.proxies.environment import NodeEnvironment
from callboard.proxies.link.certificates import TlsSource
from callboard.proxies.link.limits import Limits
from callboard.proxies.link.tls import Tls
from callboard.proxies.rights.permissions import Secrets
from callboard.proxies.rights.rights import Rights
from callboard.support.slots import NODE_PARTS

if TYPE_CHECKING:
    from callboard.entity.entities import Entities
    from callboard.entity.inspection.figures import EntityStats
    from callboard.entity.journal.journal import Journal
    from callboard.entity.queue.work_queue import WorkQueue
    from callboard.entity.reminders import ParkedReminder
    from callboard.log_service.flight_process import FlightProcess
    from callboard.log_service.log_service import ServedLog

__all__ = ["Node"]

A = TypeVar("A", bound=Actor)

#: Seconds that closing a node waits for entities to commit and move.
CLOSE_ENTITIES: Final = 6.0

#: Held while what a node has to do with entities is made.
_ENTITIES_LOCK: Final = locks.lock("making of a node's entities", 130)


class NodeOptions(TypedDict, total=False):
    """What every node can be told; see `callboard.proxies.node.Node`."""

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


class Node(node.Node):
    """A container for actors that can be linked to others.

    It runs in the background from the moment it is made; no port is open until `listen`. Use
    it as a context manager, or call `close`. All methods may be called from any thread.
    Blocking methods have an awaitable twin with an `a` in front.
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
        """Make a node.

        Args:
            name: for people: logs, displays, errors.
            dashboard: open a page for browsers, at a free port of 127.0.0.1 or at a
                `HOST:PORT`; needs the extra `dashboard`.
            actions: let actors be stopped and sent to from that page.
            options: as of `callboard.proxies.node.Node`.

        Raises:
            DashboardError: the page cannot be opened; and what that node raises.
        """
        self._flight: FlightProcess | None = None
        self._entities: Entities | None = None
        self._dashboard: Any = None
        super().__init__(name, **options)
        if dashboard:
            page = NODE_PARTS.load("dashboard")  # it stands above, and few programs need it
            listen = dashboard if isinstance(dashboard, str) else "127.0.0.1:0"
            try:
                self._dashboard = page(self, listen, actions=actions)
            except BaseException:
                self.close()
                raise

    @property
    def dashboard_url(self) -> str:
        """The link that opens the page of this node in a browser; it holds the page's token.

        Raises:
            WrongValue: the node has no page.
        """
        if self._dashboard is None:
            msg = f"{self.name} has no dashboard; make it with Node(dashboard=True)"
            raise WrongValue(msg)
        link: str = self._dashboard.link
        return link

    def _register_end(self) -> None:
        """Register the steps of what this class adds."""
        super()._register_end()
        shutdown = self.runtime.shutdown
        shutdown.add_drain_step(self._move_entities)
        shutdown.add_close_step(CloseStep.PAGES, self._close_page)
        shutdown.add_close_step(CloseStep.ENTITIES, self._close_entities)
        shutdown.add_close_step(CloseStep.FILES, self._release_files)

    async def _move_entities(self, deadline: Deadline) -> None:
        """Let other members have the slots of this node, in small portions."""
        if self._entities is not None:
            await self._start(self._entities.drain(deadline))

    def _close_page(self, _: Deadline) -> None:
        """Close the page for browsers."""
        if self._dashboard is not None:
            self._dashboard.close()

    def _close_entities(self, deadline: Deadline) -> None:
        """Let entities commit what is under way, and others have their slots."""
        if self._entities is not None:
            seconds = deadline.left(STEP_SECONDS, CLOSE_ENTITIES)
            part = Deadline.after(self.runtime.now, seconds)
            with contextlib.suppress(CallboardError):
                self._start(self._entities.close(part)).result(seconds + STEP_SECONDS)

    def _release_files(self, _: Deadline) -> None:
        """Close states and leases, and the process that serves logs."""
        if self._entities is not None:
            self._entities.release()
        if self._flight is not None:
            self._flight.close()

    # --- entities ---

    @property
    def _all_entities(self) -> "Entities":
        """What this node has to do with entities, made on first use."""
        if self._entities is None:
            self._refuse_closed()
            from callboard.entity.entities import Entities

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
        """Host entities of a class on this node; returns when the node is a member.

        Args:
            entity_class: a subclass of `Entity`.
            args: arguments of its `__init__`, the same for every key.
            state: where events are kept: `sqlite:FILE` or `postgresql://…`; None for nowhere.
            leases: what decides between nodes that host the class: a database as of `state`,
                or `etcd://HOST:PORT`; the database of `state` unless it is given.
            kwargs: for its `__init__`.

        Raises:
            DuplicateEntityType: a class of that name is hosted here.
            InvalidHandler: two `@event` methods of the class take the same events.
            NeedsLeases: another node hosts it, and neither state nor leases are given.
            StorageError: the database cannot be used; or, as `WrongState`, it is another one
                than that of the members.
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

        It is activated as soon as a node owns its slot, not only when a message comes, and is
        never put away for want of messages. When its node is gone, another one that called
        this starts it. More keys of one class are singletons by more calls.

        Args:
            entity_class: a subclass of `Entity`; what `activated` begins goes on for ever.
            key: a text of 1 to 256 bytes.
            args: for its `__init__`.
            state: where events are kept, as of `host`.
            leases: what decides between nodes, as of `host`.
            kwargs: for its `__init__`.

        Returns:
            Its ref.

        Raises:
            DuplicateEntityType: the class is hosted here by `host` or with other arguments.
            NeedsLeases: another node hosts it, and neither state nor leases are given.
            StorageError: the database cannot be used; or, as `WrongState`, it is another one
                than that of the members.
            WrongArgument: that is not an entity class, or not a string.
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
        """Return a durable work queue, which any node may put to and take from.

        Args:
            name: of the queue, the same on every node.
            state: where jobs are kept: `sqlite:FILE` or `postgresql://…`; then this node may
                own the queue. None uses one that other nodes own.
            leases: what decides between these nodes; the database of `state` unless given.
            attempts: how often a job may be taken before it is dead.
            limit: jobs that the queue may have; beyond that `put` fails with `QueueFull`.

        Raises:
            DuplicateEntityType: it is owned here with another state, or other limits.
            StorageError: the database cannot be used; or, as `WrongState`, it is another one
                than that of the other nodes.
            WrongArgument: the name is not a string, a number is not one, or `leases` comes
                without `state`.
            WrongValue: the name is empty, too long, or has spaces or `/`; a number is below 1.
        """
        if state is None and leases is None:  # waits for nothing: also in handlers
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
        require(isinstance(state, str | None), "state is a text such as 'sqlite:a.db'", state)
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
            entity_class: its class, or the name of its type.
            key: a text of 1 to 256 bytes.

        Raises:
            WrongArgument: that is not an entity class, or not a string.
            WrongValue: the key is empty or too long.
        """
        return self._all_entities.entity(entity_class, key)

    def _entity_named(self, type_name: str, key: str) -> ActorRef[Any]:
        """Return the ref of an entity that a message of another node names."""
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
        """Return all events of a type in the order of commits, to be iterated.

        `for entry in node.journal(Cart)`, or `async for`; nothing is read before.

        Args:
            entity_class: the class of the entities, or the name of their type.
            after: the position behind which to begin.
            follow: whether to wait for further events, until the journal is closed.
            state: where the events are, if this node does not host the type.
            reader: a name under which `journal.done()` stores how far it is, in the state:
                the next one begins there.
            raw: whether events are given as `RawEvent`, without their classes.

        Raises:
            WrongArgument: that is not an entity class, or an argument is of another kind.
            WrongValue: this node does not know where the events of the type are.
        """
        return self._all_entities.journal(
            entity_class, after=after, follow=follow, state=state, reader=reader, raw=raw
        )

    def parked_reminders(
        self, entity_class: type[Any] | str, *, state: str | None = None
    ) -> "list[ParkedReminder]":
        """Return the reminders of a type that no host delivers any more.

        A reminder is parked when three processes in a row have ended while its handler ran.

        Args:
            entity_class: the class of the entities, or the name of their type.
            state: where they are stored, if this node does not host the type.

        Raises:
            StorageError: the state cannot be used.
            WrongArgument: that is not an entity class.
            WrongValue: this node does not know where the type is stored.
        """
        return self._wait(self.aparked_reminders(entity_class, state=state))

    async def aparked_reminders(
        self, entity_class: type[Any] | str, *, state: str | None = None
    ) -> "list[ParkedReminder]":
        """Awaitable twin of `parked_reminders`."""
        entities = self._all_entities
        with self.runtime.shutdown.ending():
            return await entities.parked_reminders(entity_class, state)

    def start_reminders(
        self,
        entity_class: type[Any] | str,
        key: str,
        name: str | None = None,
        *,
        state: str | None = None,
    ) -> int:
        """Let parked reminders of an entity be due now; returns how many.

        The owner delivers them within 30 seconds, and at once if it is this node.

        Args:
            entity_class: the class of the entities, or the name of their type.
            key: of the entity.
            name: of the reminder; all of the entity without it.
            state: where they are stored, if this node does not host the type.

        Raises:
            StorageError: the state cannot be used.
            WrongArgument: that is not an entity class, a key or a name.
            WrongValue: this node does not know where the type is stored.
        """
        return self._wait(self.astart_reminders(entity_class, key, name, state=state))

    async def astart_reminders(
        self,
        entity_class: type[Any] | str,
        key: str,
        name: str | None = None,
        *,
        state: str | None = None,
    ) -> int:
        """Awaitable twin of `start_reminders`."""
        entities = self._all_entities
        with self.runtime.shutdown.ending():
            return await entities.start_reminders(entity_class, key, name, state)

    def ref(self, text: str) -> ActorRef[Any]:
        """Return the ref that a text stands for, an entity's too. Never blocks or dials.

        Raises:
            InvalidAddress: the text is not `basp://HOST:PORT/ID@NODE`, `basp:///ID@NODE` or
                `basp:///TYPE/KEY`.
        """
        given: object = text
        if isinstance(given, str) and given.startswith("basp:///") and "/" in given[8:]:
            from callboard.entity.reference import entity_parts

            parts = entity_parts(text)
            if parts is not None:
                return self._all_entities.entity(*parts)
        return super().ref(text)

    def _start_parts(self, limits: Limits, logs: Mapping[str, Any] | None) -> None:
        """Start the actors that every node has, and who serves logs."""
        self._logs: dict[str, Any] = {}
        if logs is not None:  # a node that serves none loads no logs
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
        """Serve the logs of `serve_logs` by Arrow Flight too; returns the address.

        A process of its own does, which this node starts again when it ends, and which ends
        with it. The node's secrets are the tokens, and its permissions hold.

        Args:
            listen: `HOST:PORT`; port 0 picks a free one. A public address needs a secret of
                the node, and `tls`.
            tls: whose certificate it shows; it is read again when it is renewed, for which
                the listener is opened anew.

        Raises:
            ExtraMissing: pyarrow is not installed.
            PublicAddress: other machines reach it, and nothing guards it.
            PortUnavailable: nothing can be served there.
            ValueError: there are no logs to serve, one is in memory, or it is served already.
        """
        self._refuse_closed()
        if self._flight is not None:
            msg = f"the logs are served at {self._flight.address} already"
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
        """Where `listen_logs` serves; with "/NAME" behind it, the address of a log.

        Raises:
            ValueError: it was not called.
        """
        if self._flight is None:
            msg = f"{self.name} serves no logs by Flight; call node.listen_logs() first"
            raise WrongValue(msg)
        return self._flight.address

    def served_logs(self) -> "list[ServedLog]":
        """Return the logs that other nodes may read here, and the progress of their readers."""
        cell = self.runtime.contexts.get(LOG_SERVICE)
        return [] if cell is None else cell.actor.served()
