"""Inspection: questions to a node about itself, and the actor that answers them.

Every linked node may ask, unless its rights are limited and exclude `inspect`. These commands
use it: `callboard node ps`, `top`, `events`, `dead-letters` and `drain`, and `callboard cluster
…`. One node asks all others on behalf of a viewer of the cluster, so that one link is enough.
"""

import functools
import heapq
import logging
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import field, fields, is_dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, Final, get_args, get_origin, get_type_hints

from callboard.actors.cell import Cell
from callboard.actors.dispatch import handler
from callboard.actors.errors import CallboardError, InvalidSeconds, WrongValue
from callboard.actors.reference import Query
from callboard.actors.runner.activity import Activity, activity_of
from callboard.actors.supervision.supervisor import Supervisor
from callboard.actors.system_actor import SystemActor
from callboard.actors.values import Answer
from callboard.arguments import seconds
from callboard.basp.handshake import FIRST_RELEASE
from callboard.basp.header import FIRST_ACTOR, INSPECTOR, NODE_ACTOR
from callboard.proxies.actor_sampler import ACTORS_A_SECOND, ActorSampler
from callboard.proxies.actor_trace import ActorTracePage, ActorTraces, TraceActor
from callboard.proxies.broker import Broker
from callboard.proxies.draining import Drain
from callboard.proxies.event_history import (
    EventHistory,
    EventPage,
    FailureInfo,
    LossInfo,
    RestartInfo,
)
from callboard.proxies.lifetime.proxy import Proxy
from callboard.proxies.messages import BackUpNode, DrainNode, frozen_message, message
from callboard.proxies.names.directory import Names
from callboard.proxies.node_monitor import NodeMonitor
from callboard.proxies.route_table import RouteTable
from callboard.proxies.row_cache import RowCache
from callboard.proxies.stats import AccountInfo, LinkInfo, ReachableNode
from callboard.support.calls import Keywords
from callboard.support.inspection_tables import (
    LATE_TABLES,
    PROCESS_TABLES,
    Row,
    RowWindow,
    cut_sorted,
    in_order,
    key_of,
)
from callboard.support.platform.release import RELEASE, build_id
from callboard.support.slots import NODE_PARTS
from callboard.support.text import sendable

#: Actors in one answer at most, about a megabyte: those with the highest sort value.
ROWS: Final = 10_000

#: Seconds in one handler after which an actor counts as hanging.
HANG_SECONDS: Final = 10.0

#: Actors that are sorted for each question; for more, one order is reused for a while.
ORDERED_AT_ONCE: Final = 2_000

#: Rows of inspection tables that are computed per second if there are many.
ROWS_A_SECOND: Final = 5_000

#: The levels that `SetLogLevel` accepts.
LOG_LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")

_log = logging.getLogger("callboard.nodes")

_PLAIN: Final = (str, int, float, bool)


@frozen_message("callboard.ActorInfo")
class ActorInfo:
    """One actor, as reported to other nodes.

    Attributes:
        address: the text of its ref.
        actor_class: the name of its class.
        name: its registered name, or "".
        state: `idle`, `ready` (messages wait), `running` (in a handler), `awaiting` (its
            handler awaits something), `blocked` (the mailbox that it sends to is full).
        depth: messages in its mailbox.
        handled: messages that its handlers were called for.
        age: seconds since it was spawned; 0 if unknown.
        waited: seconds that its oldest message has waited, at least.
        parent: the text of the ref of the actor that spawned it, or "": its supervisor, if it
            has one.
        restarts: how often its parent restarted it.
        busy: seconds that it has been in its handler, at least; 0 if it is in none.
        handler: the function that it runs, with its class; of several the oldest.
        place: file and line of that function.
        message: the type of the message that it handles, if known.
        awaits: description of what the handler awaits.
        rate: messages per second that it handles; only with `rates`.
    """

    address: str
    actor_class: str
    name: str
    state: str
    depth: int
    handled: int
    age: float
    waited: float = 0.0
    parent: str = ""
    restarts: int = 0
    busy: float = 0.0
    handler: str = ""
    place: str = ""
    message: str = ""
    awaits: str = ""
    rate: float = 0.0


@frozen_message("callboard.AccountRow")
class AccountRow:
    """Messages from a node to another one, and their outcomes: see `AccountInfo`.

    Attributes:
        node: the other node's id in hex.
        name: the name of the other node, if known.
    """

    node: str
    name: str
    sent: int
    confirmed: int
    dead_letters: int
    lost: int
    in_flight: int
    waiting: int = 0


@frozen_message("callboard.Inspection")
class Inspection:
    """The report of a node about itself.

    Attributes:
        name: the name of the node.
        uptime: seconds since it was made.
        actors: sorted by depth of the mailbox, then by handled messages, highest first.
        actor_count: number of actors; `actors` may hold fewer.
        handled: messages handled since the start.
        dead_letters: messages to actors that had ended.
        links: the links to neighbors.
        nodes: the nodes in reach.
        is_draining: whether it is about to close.
        overflows: messages that full mailboxes dropped or refused.
        expired: asks that timed out in a mailbox.
        slow_handlers: handlers that held their thread for more than a second.
        waiting: messages in all mailboxes.
        handler_seconds: time in handlers since the start by class, sampled.
        neighbours: the links; only with `system` or `accounts`.
        routes: the nodes in reach, and the neighbor that leads there; only with `system`.
        restarts: children that supervisors restarted.
        exhausted: supervisors that gave up.
        losses: messages that were not handled; this and the next two only with `history`.
        failures: actors that failed.
        restarted: children that were restarted.
        accounts: messages sent to each other node; only with `accounts`.
        keys: sort values of the matching actors, in their order; only with `keys`.
        failures_count: handlers that raised.
        release: the release of the node; `0.1` if it states none.
        build: the build of the node, if it states one.
        allows_unsealed: whether nodes of release 0.1 may be linked, whose links are not sealed.
        process: figures of the process by name: `resident_bytes`, `cpu_seconds`, `threads`,
            `descriptors`, `descriptors_max`, `gc_collections`, `gc_collected`; empty from nodes
            of release 0.1.
        deepest: messages in the deepest mailbox of an actor.
        oldest: seconds that the oldest message in a mailbox has waited, at least.
        hanging: actors that have been in one handler for `HANG_SECONDS`.
    """

    name: str
    uptime: float
    actors: list[ActorInfo]
    actor_count: int
    handled: int
    dead_letters: int
    links: int
    nodes: int
    is_draining: bool
    overflows: int = 0
    expired: int = 0
    slow_handlers: int = 0
    waiting: int = 0
    handler_seconds: dict[str, float] = field(default_factory=dict)
    neighbours: list[LinkInfo] = field(default_factory=list)
    routes: list[ReachableNode] = field(default_factory=list)
    restarts: int = 0
    exhausted: int = 0
    losses: list[LossInfo] = field(default_factory=list)
    failures: list[FailureInfo] = field(default_factory=list)
    restarted: list[RestartInfo] = field(default_factory=list)
    accounts: list[AccountRow] = field(default_factory=list)
    keys: list[Any] = field(default_factory=list)
    failures_count: int = 0
    release: str = FIRST_RELEASE
    build: str = ""
    allows_unsealed: bool = False
    process: dict[str, float] = field(default_factory=dict)
    deepest: int = 0
    oldest: float = 0.0
    hanging: int = 0


@frozen_message("callboard.Inspect")
class Inspect(Query[Inspection]):
    """Ask an inspector for the state of its node.

    Attributes:
        limit: actors at most.
        system: include the node's own parts, its links and routes.
        sort: field that the actors are sorted by, highest first.
        match: a pattern (`*`, `?`) of the class, name or number of matching actors.
        state: their state; "" for any.
        busy: seconds that they have been in their handlers, at least.
        history: include losses, failures and restarts.
        search: a text in class, name, number or state of the actors, in any case.
        rising: sort the lowest first.
        skip: actors before the first one in the answer.
        keys: include the sort values of all matching actors, at most `ROWS`.
        rates: include messages per second, since the last such question.
        accounts: include the links, and the accounts of other nodes.
    """

    limit: int = ROWS
    system: bool = False
    sort: str = "depth"
    match: str = ""
    state: str = ""
    busy: float = 0.0
    history: bool = False
    search: str = ""
    rising: bool = False
    skip: int = 0
    keys: bool = False
    rates: bool = False
    accounts: bool = False


@frozen_message("callboard.ActorPage")
class ActorPage:
    """The full report of a node about one actor.

    Attributes:
        mailbox: its bounds, or "".
        watchers: number of monitors and links that other actors have on it.
        monitors: the refs of the actors that it monitors, as texts; at most `SHOWN`.
        links: the links of the actors that it is linked with.
        children: the actors that it spawned.
        failures: failures of actors of its class or name.
        losses: messages to it.
    """

    actor: ActorInfo
    mailbox: str = ""
    watchers: int = 0
    monitors: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    children: list[str] = field(default_factory=list)
    failures: list[FailureInfo] = field(default_factory=list)
    losses: list[LossInfo] = field(default_factory=list)


@frozen_message("callboard.ActorPages")
class ActorPages:
    """The pages of the actors that match a question."""

    pages: list[ActorPage]


@frozen_message("callboard.InspectActor")
class InspectActor(Query[ActorPages]):
    """Ask an inspector about an actor: its name, number, or the text of its ref."""

    which: str


@frozen_message("callboard.ReadEvents")
class ReadEvents(Query[EventPage]):
    """Ask an inspector for the events after an event's number; -1 for the latest.

    Attributes:
        starts: record starts and ends of actors too, for a while from now on.
    """

    after: int = -1
    limit: int = 100
    starts: bool = True


@frozen_message("callboard.PartRows")
class PartRows:
    """Rows of an inspection table, their total number, and the sort values of all.

    Attributes:
        is_known: whether the node's release has the table; False from nodes of release 0.1,
            which answer with no rows.
    """

    rows: list[Keywords]
    count: int = 0
    keys: list[Any] = field(default_factory=list)
    is_known: bool = False


@frozen_message("callboard.ReadPart")
class ReadPart(Query[PartRows]):
    """Ask an inspector for rows of an inspection table, such as topics or stores.

    Attributes:
        part: name of the table; an unknown table is empty.
        which: selects one instance, such as the name of a store.
        search: as of `callboard.support.inspection_tables.RowWindow`, like the following
            fields.
        keys: include the sort values of all rows.
    """

    part: str
    which: str = ""
    search: str = ""
    sort: str = ""
    rising: bool = False
    skip: int = 0
    limit: int = 100
    keys: bool = False


@frozen_message("callboard.NodeAnswer")
class NodeAnswer:
    """The answer of one node of a cluster, or why it gave none.

    Attributes:
        name: the name of the node, as the asking node knows it.
        node: its id in hex.
        error: why there is no answer, or "".
        answer: an `Inspection`, `ActorPages` or `PartRows`; None without one.
    """

    name: str
    node: str
    error: str = ""
    answer: Any = None


@frozen_message("callboard.ClusterInspection")
class ClusterInspection:
    """The answers of all nodes in reach, starting with the asking node."""

    nodes: list[NodeAnswer]


@frozen_message("callboard.InspectCluster")
class InspectCluster(Query[ClusterInspection]):
    """Have an inspector ask all nodes in reach, itself included.

    Attributes:
        question: an `Inspect`, `InspectActor` or `ReadPart`.
        timeout: seconds until a node counts as one that does not answer.
    """

    question: Any
    timeout: float = 3.0


@frozen_message("callboard.SetLogLevel")
class SetLogLevel(Query[str]):
    """Have an inspector change a log level of its process; answered with the former one.

    Attributes:
        level: `DEBUG`, `INFO`, `WARNING`, `ERROR` or `CRITICAL`.
        logger: the name of the logger; "" for the root logger.
    """

    level: str
    logger: str = ""


#: All read-only questions; they need the right `inspect`.
QUESTIONS: Final = (Inspect, InspectActor, InspectCluster, ReadEvents, ReadPart, TraceActor)

#: Refs of one kind, and pages, in an answer at most.
SHOWN: Final = 20

#: Seconds for the nodes of a cluster to answer, at most.
LONGEST_WAIT: Final = 60.0


message("callboard.LinkInfo")(LinkInfo)
message("callboard.ReachableNode")(ReachableNode)


class Inspector(SystemActor):
    """Answers questions about the node and the cluster, and carries out `DrainNode`.

    Questions come from other nodes, so no field of a wrong type may crash the actor.
    """

    def __init__(
        self,
        broker: Broker,
        names: Names,
        drain: Drain,
        history: EventHistory,
        monitor: NodeMonitor,
    ) -> None:
        self._broker = broker
        self._names = names
        self._drain = drain
        self._history = history
        self._since = self.now()
        self._monitor, self._sampler = monitor, monitor.sampler
        self._traces = ActorTraces(broker.runtime, history.origin_of)
        self._orders = RowCache(broker.runtime.call_later, ACTORS_A_SECOND)
        self._parts = RowCache(broker.runtime.call_later, ROWS_A_SECOND)

    @handler
    def inspect(self, question: Inspect) -> Inspection:
        """Describe the node and its actors."""
        broker = self._broker
        runtime = broker.runtime
        cells = list(runtime.contexts.values())
        actors = [cell for cell in cells if cell.number >= FIRST_ACTOR]
        limit, skip = _natural(question.limit, ROWS), _natural(question.skip, sys.maxsize)
        now = runtime.now()
        if limit or question.keys is True or question.busy:
            self._sampler.glance(cells, now)
        if question.rates is True or question.sort == "rate":
            self._sampler.count(actors, now)
        until = max(skip + limit, ROWS if question.keys is True else 0)
        first, match_count = self._in_order(actors, question, until, now)
        visible = first[skip : skip + limit]
        rows = [self._row(cell, now) for cell in visible if cell.alive]
        if question.system is True:
            rows += self._parts_of_the_node(cells, now, limit)
        return Inspection(
            name=self.node.name,
            uptime=now - self._since,
            actors=rows,
            actor_count=match_count,
            handled=runtime.handled,
            dead_letters=runtime.counters.dead_letters,
            links=len(broker.routes.wires),
            nodes=len(self.node.nodes()),
            is_draining=self._names.are_withdrawn,
            overflows=runtime.counters.overflows,
            expired=runtime.counters.expired,
            slow_handlers=runtime.counters.slow_handlers,
            waiting=sum(cell.depth for cell in actors),
            handler_seconds=runtime.handler_seconds,
            restarts=runtime.counters.restarts,
            exhausted=runtime.counters.exhausted,
            failures_count=runtime.counters.failures,
            release=RELEASE,
            build=build_id(),
            allows_unsealed=broker.connector.options.access.allow_unsealed,
            process=self._monitor.usage.figures(),
            deepest=max((cell.depth for cell in actors), default=0),
            oldest=self._sampler.longest_wait(now),
            hanging=self._sampler.hanging(now, HANG_SECONDS),
            **self._more(question, first, now),
        )

    def _more(self, question: Inspect, first: list[Cell], now: float) -> Keywords:
        """Return the fields of the report that a question has to request explicitly."""
        more: Keywords = {}
        if question.system is True:
            more["routes"] = self._broker.routes.nodes()[:ROWS]
        if question.system is True or question.accounts is True:
            self._monitor.measure_links()
            more["neighbours"] = self.node.links()[:ROWS]
        if question.accounts is True:
            more["accounts"] = _account_rows(self.node.accounts())
        if question.keys is True:
            values = [self._sort_value(cell, question, now) for cell in first[:ROWS]]
            more["keys"] = [key_of(value) for value in values]
        if question.history is True:
            history = self._history
            more["losses"], more["failures"] = history.losses(), history.failures()
            more["restarted"] = history.restarts()
        return more

    def _in_order(
        self, cells: list[Cell], question: Inspect, until: int, now: float
    ) -> tuple[list[Cell], int]:
        """Return the first of the matching actors in order, and the number of matching actors.

        Sorting many actors takes long, so their order is then cached and reused for a while.
        """
        if not until and not any(_narrows(question)):
            return [], len(cells)
        key = ("actors", question.sort, question.rising, *_narrows(question))
        is_large = len(cells) >= ORDERED_AT_ONCE and all(type(part) in _PLAIN for part in key)
        if is_large and (cached := self._orders.take(key)) is not None:
            first, match_count = cached
            return first, match_count if any(_narrows(question)) else len(cells)
        matches = self._matching(cells, question, now)
        first = self._first(matches, question, len(matches) if is_large else until)
        if is_large:
            self._orders.put(key, (first, len(matches)), len(cells))
        return first, len(matches)

    def _matching(self, cells: list[Cell], question: Inspect, now: float) -> list[Cell]:
        """Return the actors that match a question."""
        if not any(_narrows(question)):
            return cells
        return [cell for cell in cells if self._is_wanted(cell, question, now)]

    def _first(self, cells: list[Cell], question: Inspect, count: int) -> list[Cell]:
        """Return the first `count` of some actors, in the order that a question requests."""
        if not count:
            return []
        now, by_text = self.now(), question.sort in _TEXTS
        sort, choose = _SORTS.get(str(question.sort), _SORTS["depth"]), heapq.nlargest

        def key(cell: Cell) -> Any:
            return (
                self._text(cell, question.sort) if by_text else sort(self._sampler, cell, now)
            )

        if question.rising is True:
            choose = heapq.nsmallest
        return choose(count, cells, key=key)

    def _sort_value(self, cell: Cell, question: Inspect, now: float) -> float | str:
        """Return the sort value of an actor."""
        if question.sort in _TEXTS:
            return self._text(cell, question.sort)
        return _SORTS.get(str(question.sort), _SORTS["depth"])(self._sampler, cell, now)[0]

    def _text(self, cell: Cell, sort: str) -> str:
        """Return the text by which an actor is sorted."""
        if sort == "state":
            return cell.activity
        if sort == "name":
            return ", ".join(self._names_of(cell)).casefold()
        return type(cell.actor).__qualname__.casefold()

    def _is_wanted(self, cell: Cell, question: Inspect, now: float) -> bool:
        """Return whether an actor matches a question."""
        pattern, state, busy = question.match, question.state, question.busy
        search = question.search
        if type(state) is str and state not in ("", cell.activity):
            return False
        if type(busy) in (float, int) and busy > 0.0 and self._sampler.busy(cell, now) < busy:
            return False
        is_pattern, is_search = type(pattern) is str and pattern, type(search) is str and search
        if not is_pattern and not is_search:
            return True
        texts = (type(cell.actor).__qualname__, str(cell.number), *self._names_of(cell))
        if is_search:
            needle = search[:PATTERN].casefold()
            if not any(needle in text.casefold() for text in (*texts, cell.activity)):
                return False
            if not is_pattern:
                return True
        return any(fnmatchcase(text, pattern[:PATTERN]) for text in texts)

    @handler
    def inspect_actor(self, question: InspectActor) -> ActorPages:
        """Return the full report about each actor that has a name, number or address."""
        which, now = str(question.which)[:PATTERN], self.now()
        cells = [
            cell
            for cell in list(self._broker.runtime.contexts.values())
            if cell.number >= FIRST_ACTOR and which in self._called(cell)
        ]
        self._sampler.sample(list(self._broker.runtime.contexts.values()), now)
        return ActorPages([self._page(cell, now) for cell in cells[:SHOWN]])

    def _called(self, cell: Cell) -> tuple[str, ...]:
        """Return the texts that identify an actor in a question."""
        text, number = str(cell.ref), str(cell.number)
        node = cell.ref.node_id.hex()
        short = (f"{number}@{node}", f"{number}@{node[:6]}")
        return (text, number, *short, *self._names_of(cell))

    def _names_of(self, cell: Cell) -> tuple[str, ...]:
        return () if cell.known_ref is None else self._names.names_of(cell.known_ref)

    def _page(self, cell: Cell, now: float) -> ActorPage:
        """Describe one actor in full."""
        row, history = self._row(cell, now), self._history
        return ActorPage(
            row,
            "" if cell.bounds is None else str(cell.bounds),
            cell.watcher_count,
            [str(ref) for ref in cell.watched[:SHOWN]],
            [str(ref) for ref in cell.linked[:SHOWN]],
            [str(child.ref) for child in list(cell.children or ())[:SHOWN]],
            [
                record
                for record in history.failures()
                if record.actor_class == row.actor_class and record.name in ("", row.name)
            ][:SHOWN],
            [
                record
                for record in history.losses()
                if record.address == row.address or (row.name and record.name == row.name)
            ][:SHOWN],
        )

    @handler
    def trace_actor(self, order: TraceActor) -> ActorTracePage:
        """Start, extend or end the trace of an actor, and return its messages."""
        if type(order.after) is not int or not isinstance(order.seconds, int | float):
            return ActorTracePage([])
        which = str(order.which)[:PATTERN]
        for cell in list(self._broker.runtime.contexts.values()):
            if cell.number >= FIRST_ACTOR and which in self._called(cell):
                return self._traces.update(cell, order)
        return ActorTracePage([])

    @handler(concurrent=True)
    async def read_part(self, question: ReadPart) -> PartRows:
        """Return rows of an inspection table that a package above has registered."""
        overlay, part = self.node.overlay, str(question.part)
        permits = overlay.rights(self.context.sender_node)
        window = RowWindow(
            str(question.search)[:PATTERN],
            str(question.sort),
            question.rising is True,
            _natural(question.skip, sys.maxsize),
            _natural(question.limit, ROWS),
        )
        key = part, str(question.which), window.search, window.sort, window.rising
        if permits is None and (cached := self._parts.take(key)) is not None:
            return _part_rows(cached, window, question)
        rows: list[Row] = []
        sources = (*overlay.parts.get(part, ()), *PROCESS_TABLES.get(part, ()))
        if not sources and part not in LATE_TABLES:
            return PartRows([])
        for source in sources:
            result = source(str(question.which), permits)
            rows += await result if isinstance(result, Awaitable) else result
        ordered = in_order(rows, window)
        if permits is None:
            self._parts.put(key, ordered, len(rows))
        return _part_rows(ordered, window, question)

    @handler
    def read_events(self, question: ReadEvents) -> EventPage:
        """Return recent events."""
        if question.starts is not False:
            self._history.follow()
        after = question.after if type(question.after) is int else -1
        return self._history.events(after, _natural(question.limit, ROWS))

    @handler(concurrent=True)
    async def inspect_cluster(self, order: InspectCluster) -> ClusterInspection:
        """Ask all nodes in reach; if a leaf asks, only the nodes that the leaf can reach."""
        question: Any = order.question
        own = NodeAnswer(self.node.name, self.me.node_id.hex())
        if type(question) is Inspect:
            own = replace(own, answer=self.inspect(question))
        elif type(question) is InspectActor:
            own = replace(own, answer=self.inspect_actor(question))
        elif type(question) is ReadPart:
            own = replace(own, answer=await self.read_part(question))
        else:
            return ClusterInspection([replace(own, error="not a question for a cluster")])
        try:
            timeout = min(seconds(order.timeout), LONGEST_WAIT)
        except InvalidSeconds as error:
            return ClusterInspection([replace(own, error=str(error))])
        rights = self.node.overlay.rights(self.context.sender_node)
        pending = [
            (other, self.runtime.ref_of(other.node_id, INSPECTOR).ask(question, timeout))
            for other in self.node.nodes()
            if rights is None or rights.permit("reach", other.name)
        ]
        answers = [own]
        for other, future in pending:
            answer, reason = None, ""
            try:
                answer = await future
            except CallboardError as failure:
                reason = str(failure)[:PATTERN]
            if not reason and not _is_sound(answer, type(own.answer)):
                answer, reason = None, "its answer is malformed"
            answers.append(NodeAnswer(other.name, other.node_id.hex(), reason, answer))
        return ClusterInspection(answers)

    def _parts_of_the_node(
        self, cells: Sequence[Cell], now: float, limit: int
    ) -> list[ActorInfo]:
        """Describe the system actors of the node, its broker and its proxies."""
        rows = [self._row(cell, now) for cell in cells if cell.number < FIRST_ACTOR]
        frames = sum(wire.frames_received for wire in list(self._broker.routes.wires.values()))
        text = self._broker.routes.ref_text(self.runtime.node_id, NODE_ACTOR)
        rows.append(ActorInfo(text, "Broker", "", "running", self._broker.awaited, frames, 0.0))
        proxies = self._broker.lifetimes.proxies()[:limit]
        return rows + [_proxy_row(proxy, self._broker.routes) for proxy in proxies]

    def _row(self, cell: Cell, now: float) -> ActorInfo:
        """Describe one actor."""
        above = cell.parent
        doing = Activity() if cell.number == INSPECTOR else activity_of(cell)
        return ActorInfo(
            address=str(cell.ref),
            actor_class=type(cell.actor).__qualname__,
            name=", ".join(self._names_of(cell)),
            state=cell.activity,
            depth=cell.depth,
            handled=cell.handled,
            age=max(0.0, now - cell.born),
            waited=self._sampler.waited(cell, now),
            parent="" if above is None else str(above.ref),
            restarts=_restarts_of(cell),
            busy=self._sampler.busy(cell, now),
            handler=doing.handler,
            place=doing.place,
            message=doing.message,
            awaits=doing.awaits,
            rate=self._sampler.rate(cell),
        )

    @handler
    def back_up(self, request: BackUpNode) -> None:
        """Back up the files of this process on a thread, and answer with the contents."""
        back_up = NODE_PARTS.load("backup")  # a higher layer that few programs need
        back_up(self.runtime, request.folder, request.token, self.promise())

    @handler
    def set_log_level(self, order: SetLogLevel) -> str:
        """Change the level of a logger of this process.

        Raises:
            WrongValue: the level is unknown, or the name is not a text.
        """
        if order.level not in LOG_LEVELS or type(order.logger) is not str:
            msg = (
                f"{order.level!r:.80} is not a log level; use one of {', '.join(LOG_LEVELS)}, "
                "and the name of a logger"
            )
            raise WrongValue(msg)
        logger = logging.getLogger(order.logger[:PATTERN] or None)
        former = logging.getLevelName(logger.getEffectiveLevel())
        logger.setLevel(order.level)
        values = logger.name, former, order.level, self.context.sender_node.hex()[:12]
        _log.warning("the level of %s was %s and is %s now, as node %s requested", *values)
        return str(former)

    @handler(cancellable=False)
    async def drain(self, request: DrainNode) -> None:
        """Drain the node, answer with the report, and close it."""
        promise = self.promise()
        try:
            limit = seconds(request.timeout)
        except InvalidSeconds as error:  # the value is from another node
            promise.set_exception(error)
            return
        report = await self._drain.adrain(limit)
        promise.set_result(report)
        self.node.close()


def _account_rows(accounts: Mapping[bytes, AccountInfo]) -> list[AccountRow]:
    """Return the accounts of a node as rows."""
    return [
        AccountRow(
            node.hex(),
            account.name,
            account.sent,
            account.confirmed,
            account.dead_letters,
            account.lost,
            account.in_flight,
            account.waiting,
        )
        for node, account in list(accounts.items())[:ROWS]
    ]


def _restarts_of(cell: Cell) -> int:
    """Return how often a supervisor restarted an actor."""
    above = None if cell.parent is None else cell.parent.actor
    return above.restarts_of(cell.ref) if isinstance(above, Supervisor) else 0


def _part_rows(ordered: list[Row], window: RowWindow, question: ReadPart) -> PartRows:
    """Return the answer to a question from sorted rows."""
    page = cut_sorted(ordered, window, keys=question.keys is True)
    rows = [
        {
            name: sendable(value) if isinstance(value, str) else value
            for name, value in row.items()
        }
        for row in page.rows
    ]
    return PartRows(rows, page.count, page.keys, is_known=True)


def _narrows(question: Inspect) -> tuple[object, ...]:
    """Return the fields of a question that select actors."""
    return question.match, question.state, question.busy, question.search


def _natural(value: Answer, most: int) -> int:
    """Return a number of rows that another node requested, within bounds."""
    return max(0, min(value, most)) if type(value) is int else most


#: Characters of a pattern, and of an error that is passed on.
PATTERN: Final = 500

_Sort = Callable[[ActorSampler, Cell, float], tuple[float, ...]]

#: Fields that actors can be sorted by.
_SORTS: Final[dict[str, _Sort]] = {
    "depth": lambda _, cell, __: (cell.depth, cell.handled),
    "handled": lambda _, cell, __: (cell.handled,),
    "age": lambda _, cell, now: (now - cell.born,),
    "waited": lambda sampler, cell, now: (sampler.waited(cell, now), cell.depth),
    "busy": lambda sampler, cell, now: (sampler.busy(cell, now), cell.depth),
    "restarts": lambda _, cell, __: (_restarts_of(cell),),
    "rate": lambda sampler, cell, __: (sampler.rate(cell), cell.handled),
}
#: Text fields that actors can be sorted by.
_TEXTS: Final = ("class", "name", "state")
SORTS: Final = tuple(_SORTS)


def _is_sound(value: Answer, kind: Any) -> bool:
    """Return whether a value from another node has the expected type."""
    if kind is Any:
        return True
    if is_dataclass(kind):
        return type(value) is kind and all(
            _is_sound(getattr(value, name), declared)
            for name, declared in _declared(kind).items()
        )
    inner, outer = get_args(kind), get_origin(kind) or kind
    if type(value) is not outer:
        return outer is float and type(value) is int
    if outer is dict and isinstance(value, dict):
        return all(_is_sound(k, inner[0]) and _is_sound(v, inner[1]) for k, v in value.items())
    return not isinstance(value, list) or all(_is_sound(item, inner[0]) for item in value)


@functools.cache
def _declared(kind: type) -> Keywords:
    """Return the types of the fields of a class."""
    hints = get_type_hints(kind)
    return {declared_field.name: hints[declared_field.name] for declared_field in fields(kind)}


def _proxy_row(proxy: Proxy, routes: RouteTable) -> ActorInfo:
    """Describe one remote actor."""
    waiting, name = len(proxy.waiting or ()), routes.names.get(proxy.node, "")
    address, state = routes.ref_text(proxy.node, proxy.number), "ready" if waiting else "idle"
    return ActorInfo(address, "Proxy", name, state, waiting, handled=0, age=0.0)
