"""The collector: polls the reachable nodes and keeps ten minutes of their figures.

It runs only while a page is open: the first watcher starts its task and its subscription to the
node's events, and the last one ends both. Each node is polled by a task of its own, so an
unresponsive node does not delay the others. A node is `up`, `draining`, `silent` (it did not
answer lately), `lost` (there is no path to it), `closed` (it closed its links), or `refused`
(the rights do not suffice).

Everything runs on the event loop of the watchers. Nodes are polled with the same messages as
from the commands, so the rights of the polling node apply.
"""

import asyncio
import contextlib
import heapq
import itertools
import time
from collections import deque
from collections.abc import (
    AsyncIterator,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import field, fields, replace
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any, Final, TypeVar

from callboard.kernel.actors import Query
from callboard.kernel.errors import CallboardError
from callboard.kernel.events import LinkDown, LinkUp, NodeDown, NodeUp
from callboard.kernel.tables import (
    ActorInfo,
    Inspect,
    Inspection,
    PartRows,
    ReadEvents,
    ReadPart,
)
from callboard.kernel.topology import INSPECTOR
from callboard.node import Node
from callboard.support.dataclass import dataclass
from callboard.support.inspection_tables import (
    Key,
    Row,
    RowWindow,
    event_row,
    key_of,
    share,
    slices_fit,
)

#: Seconds between rounds, and the minimum when an event starts a round early.
INTERVAL: Final = 1.0
SHORTEST: Final = 0.1

#: Seconds until a question to a node times out; after `SILENT` it is shown as silent.
PATIENCE: Final = 3.0
SILENT: Final = 1.5

#: Samples kept for each node (ten minutes); events kept of all nodes; events read at once.
KEPT: Final = 600
EVENTS_KEPT: Final = 2_000
EVENTS_READ: Final = 200

#: Seconds for which a lost node is shown, and the maximum number of lost nodes shown.
LOST_SHOWN: Final = 600.0
LOST_MOST: Final = 50

#: Seconds for which a problem is shown as an alarm.
ALARM: Final = 60.0

#: Least values that are alarms: messages in one mailbox, seconds that a message has waited, and
#: the share of its limit that a work queue has reached.
DEEP: Final = 10_000
OLD: Final = 10.0
FULL: Final = 0.9

#: Seconds between questions about the work queues of a node.
QUEUES_INTERVAL: Final = 10.0

#: Reads of the last hour are shared for as long as a node keeps a sample.
HOUR_INTERVAL: Final = 10.0

#: Nodes whose memory is shown as a curve each: those with most memory.
MEMORY_CURVES: Final = 6

#: A window that ends before this row is read from the first rows of each node, without keys.
NEAR: Final = 200

T = TypeVar("T")

#: Extra rows requested on both sides of a node's known rows, and windows remembered.
MARGIN: Final = 10
PLACES: Final = 64

#: The answer of one node: rows, number of all its rows, and the sort keys of all its rows.
Told = tuple[list[Any], int, list[Any]]

#: The figures of a node that are shown as rates.
RATED: Final = ("handled", "sent", "confirmed", "lost", "frames")

#: Figures whose increase is an alarm, with the text of the alarm after the count.
ALARMS: Final = {
    "slow_handlers": "handlers blocked their thread for more than a second",
    "overflows": "messages were dropped by full mailboxes",
    "lost": "messages are lost or unconfirmed",
    "dead_letters": "messages were sent to ended actors",
    "expired": "asks expired in the mailbox",
    "failures_count": "handlers raised",
    "restarts": "actors were restarted",
    "exhausted": "supervisors gave up",
}


@dataclass(eq=False)
class Member:
    """A node as the collector knows it.

    Attributes:
        told: the latest answer.
        state: `up`, `silent`, `lost`, `closed`, `draining`, or `refused` if the rights do not
            suffice.
        since: start of the state, on the monotonic clock.
        history: times and figures, the oldest first.
        events: the number of the latest event that was read.
        queues: rows of the work queues that the node owns, read at `queues_at`.
    """

    node_id: bytes
    name: str
    hops: int = 0
    inspection: Inspection | None = None
    state: str = "silent"
    error: str = ""
    since: float = 0.0
    answered: float = 0.0
    is_asked: bool = False
    events: int = -1
    queues: list[Row] = field(default_factory=list)
    queues_at: float = -1e9
    history: deque[tuple[float, dict[str, float]]] = field(
        default_factory=lambda: deque(maxlen=KEPT)
    )

    def turn(self, state: str, now: float, error: str = "") -> bool:
        """Set the state; return whether it changed."""
        self.error = error
        if state == self.state:
            return False
        self.state, self.since = state, now
        return True

    @property
    def is_mute(self) -> bool:
        """Whether it did not answer lately; False for a node that was never polled."""
        return self.state == "silent" and bool(self.error)

    def rate(self, figure: str) -> float:
        """Return the rate of a figure between the latest two samples."""
        if len(self.history) < 2:
            return 0.0
        (start, old), (end, new) = self.history[-2], self.history[-1]
        return max(0.0, (new.get(figure, 0.0) - old.get(figure, 0.0)) / max(end - start, 0.001))

    def rises(self, now: float) -> dict[str, int]:
        """Return the increase of each figure within the last `ALARM` seconds."""
        if not self.history:
            return {}
        last = first = self.history[-1][1]
        for timestamp, values in reversed(self.history):
            if now - timestamp > ALARM:
                break
            first = values
        return {name: max(0, int(last[name] - first[name])) for name in ALARMS}

    def rise_texts(self, now: float) -> list[tuple[str, int, str]]:
        """Return kind, count and text of each problem of the last minute."""
        return [
            (kind, count, f"{count:,} {ALARMS[kind]}")
            for kind, count in self.rises(now).items()
            if count
        ]

    def problems(self) -> list[tuple[str, int, str]]:
        """Return kind, count and text of each problem that the node has at this moment."""
        report, problems = self.inspection, []
        if report is None:
            return []
        if report.hanging:
            text = f"{report.hanging:,} actors hang in a handler; see callboard cluster hangs"
            problems.append(("hanging", report.hanging, text))
        if report.deepest >= DEEP:
            text = f"{report.deepest:,} messages wait in one mailbox"
            problems.append(("deep", report.deepest, text))
        if report.oldest >= OLD:
            text = f"a message has waited for {report.oldest:,.0f} s in a mailbox"
            problems.append(("old", 1, text))
        for row in self.queues:
            jobs = row["ready"] + row["delayed"] + row["taken"] + row["dead"]
            if jobs >= FULL * row["limit"]:
                text = f"the queue {row['queue']} has {jobs:,} of {row['limit']:,} jobs"
                problems.append(("full", jobs, text))
        return problems


#: States of nodes without a path: one that ended in silence, and one that closed its links.
GONE: Final = ("lost", "closed")

#: The end of the reason with which a node that closes leaves its links.
CLOSING: Final = ": closing"

#: A window: its rows with their nodes, the number of all rows, and errors of silent nodes.
Found = tuple[list[tuple[Member, Any]], int, dict[str, str]]

#: For each node the number of its rows before a window, and in it.
Places = dict[Member, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class _Rowset:
    """A table that is spread over nodes: how to query a window of it and read the answers.

    Attributes:
        identity: name and filter; part of the key under which windows are remembered.
        question: makes the query for a window, with or without the sort keys of all rows.
        read: reads an answer.
        key: returns the value by which a row is sorted.
    """

    identity: tuple[str, str]
    question: Callable[[RowWindow, bool], Query[Any]]
    read: Callable[[Any], Told]
    key: Callable[[Any], object]

    def keys(self, rows: list[Any], window: RowWindow) -> list[Key]:
        """Return the sort keys of rows; all equal if the window is not sorted."""
        return [key_of(self.key(row)) if window.sort else (0, 0) for row in rows]


class ClusterWatch:
    """Polls the cluster of a node while there are watchers."""

    def __init__(
        self, node: Node, *, shows_itself: bool = True, interval: float = INTERVAL
    ) -> None:
        """Create an idle collector; `watched` starts it.

        Args:
            node: the node through which the cluster is polled.
            shows_itself: whether that node is a member; False for one that only watches.
            interval: seconds between rounds.
        """
        self.node = node
        self._shows_itself = shows_itself
        self.interval = interval
        self.members: dict[bytes, Member] = {}
        self.events: deque[dict[str, Any]] = deque(maxlen=EVENTS_KEPT)
        #: Number of finished rounds.
        self.rounds = 0
        self._watchers = 0
        self._numbers = itertools.count(1)
        self._task: asyncio.Task[None] | None = None
        self._turned = asyncio.Condition()
        self._hurry = asyncio.Event()
        self._stack = contextlib.ExitStack()
        self._asked: set[asyncio.Task[None]] = set()
        #: Answers of this round by query, shared by all watchers.
        self._shared: dict[object, asyncio.Task[Any]] = {}
        #: The latest alarms, with the number of their round.
        self._alarms: tuple[int, list[dict[str, Any]]] = (-1, [])
        #: Nodes that closed their links.
        self._closing: set[bytes] = set()
        #: The curves of the last hour, and when they were read.
        self._hour: tuple[float, dict[str, Any]] = (-1e9, {})
        #: Window → for each node the number of rows before it and in it at the last read.
        self._places: dict[object, Places] = {}

    @property
    def is_at_work(self) -> bool:
        """Whether there are watchers; without them no task, timer or subscription exists."""
        return self._task is not None

    @contextlib.asynccontextmanager
    async def watched(self) -> AsyncIterator["ClusterWatch"]:
        """Keep the collector running within the block."""
        self._watchers += 1
        if self._task is None:
            loop = asyncio.get_running_loop()
            self._turned, self._hurry = asyncio.Condition(), asyncio.Event()

            def on_event(event: object) -> None:
                if isinstance(event, NodeDown | LinkDown) and event.reason.endswith(CLOSING):
                    self._closing.add(
                        event.node_id if isinstance(event, NodeDown) else event.peer
                    )
                if isinstance(event, NodeDown | NodeUp | LinkDown | LinkUp):
                    with contextlib.suppress(RuntimeError):  # the loop is closed
                        loop.call_soon_threadsafe(self._hurry.set)

            self._stack.enter_context(self.node.subscribed(on_event))
            self._task = loop.create_task(self._collect())
        try:
            yield self
        finally:
            self._watchers -= 1
            if not self._watchers:
                self._stop()

    def _stop(self) -> None:
        """Stop after the last watcher has left."""
        if self._task is not None:
            self._task.cancel()
            self._task = None
        for task in (*self._asked, *self._shared.values()):
            task.cancel()
        self._shared, self._places = {}, {}
        self._stack.close()
        for member in self.members.values():
            member.is_asked = False

    async def next_round(self, last_round: int) -> int:
        """Wait for a round after `last_round` to end; return its number."""
        async with self._turned:
            await self._turned.wait_for(lambda: self.rounds > last_round)
        return self.rounds

    async def shared(self, asked: object, answer: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return the answer to a query; it is computed once in a round for all watchers."""
        task = self._shared.get(asked)
        if task is None:
            task = self._shared[asked] = asyncio.get_running_loop().create_task(answer())
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
        result: T = await asyncio.shield(task)
        return result

    # --- polling ---

    async def _collect(self) -> None:
        """Poll all nodes in rounds, until cancelled."""
        while True:
            started = time.monotonic()
            self._hurry.clear()
            self._update_members(started)
            polls = [self._spawn(member) for member in self.asked() if not member.is_asked]
            if polls:  # a round does not wait for slow nodes; they are shown in a later one
                await asyncio.wait(polls, timeout=min(self.interval / 2, 0.25))
            self._mark_silent(time.monotonic())
            self.rounds += 1
            self._shared = {}
            async with self._turned:
                self._turned.notify_all()
            remaining = self.interval - (time.monotonic() - started)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._hurry.wait(), max(remaining, SHORTEST))
            if self._hurry.is_set():
                await asyncio.sleep(max(0.0, SHORTEST - (time.monotonic() - started)))

    def _spawn(self, member: Member) -> asyncio.Task[None]:
        """Start polling one node."""
        member.is_asked = True
        task = asyncio.get_running_loop().create_task(self._poll(member))
        self._asked.add(task)
        task.add_done_callback(self._asked.discard)
        return task

    def _update_members(self, now: float) -> None:
        """Update the members: add reachable nodes, mark lost ones, drop old lost ones."""
        node, reachable = self.node, {}
        if self._shows_itself:
            reachable[node.node_id] = (node.name, 0)
        reachable |= {route.node_id: (route.name, route.hops) for route in node.nodes()}
        for node_id, (name, hops) in reachable.items():
            member = self.members.get(node_id)
            if member is None:
                member = self.members[node_id] = Member(node_id, name, since=now, answered=now)
            member.name, member.hops = name or member.name, hops
            if member.state in GONE:
                member.turn("silent", now)
                member.answered = now
        for member in self.members.values():
            if member.node_id not in reachable and member.state not in GONE:
                report = member.inspection
                is_polite = member.node_id in self._closing or (
                    report is not None and report.is_draining
                )
                member.turn("closed" if is_polite else "lost", now)
        self._closing -= reachable.keys()
        lost = [member for member in self.members.values() if member.state in GONE]
        lost.sort(key=lambda member: -member.since)
        for index, member in enumerate(lost):
            # A restarted node has the old name and a new id.
            is_restarted = any(
                self.members[node_id].name == member.name for node_id in reachable
            )
            is_brief = is_restarted or member.state == "closed"
            is_expired = now - member.since > (10.0 if is_brief else LOST_SHOWN)
            if is_expired or index >= LOST_MOST:
                del self.members[member.node_id]

    def _mark_silent(self, now: float) -> None:
        """Mark nodes as silent that did not answer lately."""
        for member in self.asked():
            if now - member.answered > SILENT and member.state in ("up", "draining"):
                member.turn("silent", now, "it does not answer")

    def asked(self) -> list[Member]:
        """Return the members that can be polled: all but lost and closed ones."""
        return [member for member in self.members.values() if member.state not in GONE]

    async def ask(self, node_id: bytes, question: Query[Any]) -> Any:
        """Ask the inspector actor of a node.

        Raises:
            CallboardError: the node does not answer or refuses.
        """
        return await self.node.context.ref_of(node_id, INSPECTOR).ask(question, PATIENCE)

    async def _poll(self, member: Member) -> None:
        """Poll the figures and the new events of a node."""
        try:
            inspection = await self.ask(member.node_id, Inspect(0, accounts=True))
            page = await self.ask(
                member.node_id, ReadEvents(member.events, EVENTS_READ, starts=False)
            )
        except CallboardError as error:
            if member.state not in GONE:
                is_refused = type(error).__name__ == "NotPermitted"
                state = "refused" if is_refused else "silent"
                member.turn(state, time.monotonic(), str(error)[:500])
            return
        finally:
            member.is_asked = False
        now = member.answered = time.monotonic()
        if isinstance(inspection, Inspection) and member.state not in GONE:
            member.inspection, member.name = inspection, inspection.name or member.name
            member.turn("draining" if inspection.is_draining else "up", now)
            member.history.append((now, _figures(inspection)))
        self._store_events(member, page)
        await self._read_queues(member, now)

    async def _read_queues(self, member: Member, now: float) -> None:
        """Read the work queues that a node owns, now and then."""
        if now - member.queues_at < QUEUES_INTERVAL:
            return
        member.queues_at = now
        with contextlib.suppress(CallboardError):
            answer = await self.ask(member.node_id, ReadPart("queues", limit=1_000))
            member.queues = answer.rows

    def _store_events(self, member: Member, page: Any) -> None:
        """Store the new events of a node."""
        now, member.events = datetime.now(UTC), page.last
        for event in page.events:
            if event.values.get("is_tool") == "True":
                continue  # for example the link of the node that shows this dashboard
            row = event_row(event, now)
            row.pop("is_tool", None)
            source = {"id": next(self._numbers), "at": member.name}
            self.events.append(source | row)

    # --- tables ---

    def nodes(self) -> list[dict[str, Any]]:
        """Return a row for each node: its state, and its answer without lists."""
        now = time.monotonic()
        rows = []
        for member in sorted(self.members.values(), key=lambda item: item.name):
            inspection = member.inspection or Inspection(
                member.name, 0.0, [], 0, 0, 0, 0, 0, is_draining=False
            )
            names = [column.name for column in fields(inspection)]
            values = {name: getattr(inspection, name) for name in names}
            scalars = {
                name: value for name, value in values.items() if not isinstance(value, list)
            }
            sums = {
                name: sum(getattr(row, name) for row in inspection.accounts) for name in _SUMS
            }
            rates = {f"{name}_rate": round(member.rate(name), 1) for name in RATED}
            state = {"state": member.state, "for": round(now - member.since, 1)}
            identity = {
                "node_id": member.node_id.hex(),
                "hops": member.hops,
                "error": member.error,
            }
            rows.append({"node": member.name, **identity, **state, **scalars, **sums, **rates})
        return rows

    def links(self) -> list[dict[str, Any]]:
        """Return a row for each link between two members, including lost ones."""
        rows: dict[tuple[str, str], dict[str, Any]] = {}
        for member in self.members.values():
            for link in () if member.inspection is None else member.inspection.neighbours:
                peer = self.members.get(link.peer)
                if peer is None or link.is_tool:
                    continue
                states = {member.state, peer.state}
                state = next((s for s in (*GONE, "silent") if s in states), "up")
                first, last = sorted((member.node_id.hex(), link.peer.hex()))
                row = rows.setdefault(
                    (first, last), {"a": first, "b": last, "state": state, "frames": 0}
                )
                row["frames"] += link.frames_sent
                row["waiting"] = row.get("waiting", 0) + link.bytes_waiting
        return list(rows.values())

    def pairs(self) -> list[dict[str, Any]]:
        """Return a row for each sender and receiver: messages sent, confirmed, lost."""
        return [
            {
                "from": member.name,
                "from_id": member.node_id.hex(),
                "to": account.name or account.node[:12],
                "to_id": account.node,
                "sent": account.sent,
                "confirmed": account.confirmed,
                "lost": account.lost,
                "in_flight": account.in_flight,
                "dead_letters": account.dead_letters,
                "waiting": account.waiting,
                "as_of": member.state,
            }
            for member in self.members.values()
            if member.inspection is not None
            for account in member.inspection.accounts
            if account.sent or account.waiting
        ]

    def alarms(self) -> list[dict[str, Any]]:
        """Return the alarms: lost, silent or refusing nodes, and recent rises in `ALARMS`."""
        if self._alarms[0] == self.rounds:
            return self._alarms[1]
        now, rows = time.monotonic(), []
        for member in self.members.values():
            if member.state in ("lost", "silent", "refused") and now - member.since > 0.0:
                text = f"{member.name} is {member.state}"
                rows.append(
                    {"node": member.name, "kind": member.state, "text": text, "count": 1}
                )
            if member.state in GONE:
                continue
            for kind, count, text in (*member.problems(), *member.rise_texts(now)):
                row = {"node": member.name, "kind": kind, "count": count, "text": text}
                rows.append(row)
        self._alarms = self.rounds, rows
        return rows

    def history(self) -> dict[str, Any]:
        """Return the rates of the last ten minutes for each second, summed over all nodes."""
        sums: dict[int, dict[str, float]] = {}
        for member in self.members.values():
            for (start, old), (end, new) in itertools.pairwise(member.history):
                second = sums.setdefault(
                    int(end), dict.fromkeys(("handled", "sent", "lost"), 0.0)
                )
                for name in second:
                    second[name] += max(0.0, (new[name] - old[name]) / max(end - start, 0.001))
        offset = time.time_ns() / 1e9 - time.monotonic()
        times = sorted(sums)
        series = {
            name: [round(sums[timestamp][name], 1) for timestamp in times] for name in _CURVES
        }
        return {"times": [round(timestamp + offset) for timestamp in times], **series}

    async def hour(self) -> dict[str, Any]:
        """Return the curves of the last hour: rates, the oldest message, and memory by node.

        Each node has kept its own figures, so the hour is complete when a page is opened.
        """
        now = time.monotonic()
        if now - self._hour[0] >= HOUR_INTERVAL:
            self._hour = now, {}
            members = [member for member in self.asked() if not member.is_mute]
            questions: list[Query[Any]] = [ReadPart("figures", limit=1_000)] * len(members)
            answers, _ = await self._ask_all(members, questions)
            samples = {member.name: answer.rows for member, answer in answers.items()}
            self._hour = now, curves(samples, time.time_ns() / 1e9)
        return self._hour[1]

    # --- windows over all nodes ---

    async def actors(
        self, window: RowWindow, *, node: str = "", state: str = ""
    ) -> tuple[list[tuple[Member, ActorInfo]], int, dict[str, str]]:
        """Return a window of the actors of all nodes; see `Found`."""

        def question(part: RowWindow, keys: bool) -> Inspect:  # noqa: FBT001
            return Inspect(
                part.limit,
                sort=part.sort,
                search=part.search,
                state=state,
                rising=part.rising,
                skip=part.skip,
                keys=keys,
                rates=True,
            )

        def read(answer: Inspection) -> Told:
            return answer.actors, answer.actor_count, answer.keys

        sort = {"class": "actor_class"}.get(window.sort, window.sort)
        table = _Rowset(("actors", state), question, read, attrgetter(sort))
        return await self._window(table, window, node)

    async def rows(
        self, part: str, window: RowWindow, *, which: str = "", node: str = ""
    ) -> tuple[list[tuple[Member, dict[str, Any]]], int, dict[str, str]]:
        """Return a window of an inspection table over all nodes; see `Found`."""

        def question(node_window: RowWindow, keys: bool) -> ReadPart:  # noqa: FBT001
            values = (
                node_window.search,
                node_window.sort,
                node_window.rising,
                node_window.skip,
                node_window.limit,
            )
            return ReadPart(part, which, *values, keys)

        def read(answer: PartRows) -> Told:
            return answer.rows, answer.count, answer.keys

        def key(row: Row) -> object:
            return row.get(window.sort)

        return await self._window(_Rowset((part, which), question, read, key), window, node)

    async def _window(self, table: "_Rowset", window: RowWindow, node: str) -> Found:
        """Read a window over all nodes.

        For a window that was read before, each node is asked for the rows at its last known
        position and `MARGIN` more on both sides, so nodes do not send rows that are not shown.
        Silent nodes are not asked.
        """
        candidates = [
            member for member in self.asked() if node in ("", member.name, member.node_id.hex())
        ]
        mute = {member.name: member.error for member in candidates if member.is_mute}
        members, key = (
            [member for member in candidates if not member.is_mute],
            (table.identity, window, node),
        )
        places_before, result = self._places.pop(key, {}), None
        if places_before and places_before.keys() == set(members):
            result = await self._window_at(table, window, places_before)
        places, rows, count, silent = result or await self._window_from_all(
            table, window, members
        )
        if not silent:
            while len(self._places) >= PLACES:
                del self._places[next(iter(self._places))]
            self._places[key] = places
        return rows, count, mute | silent

    async def _window_at(
        self, table: "_Rowset", window: RowWindow, places_before: Places
    ) -> tuple[Places, list[tuple[Member, Any]], int, dict[str, str]] | None:
        """Read a window at its known position; return None if its rows have moved too far."""
        skips = {member: max(0, skip - MARGIN) for member, (skip, _) in places_before.items()}
        parts = [
            replace(window, skip=skips[member], limit=skip + count + MARGIN - skips[member])
            for member, (skip, count) in places_before.items()
        ]
        answers, silent = await self._ask_all(
            list(places_before),
            [table.question(part, False) for part in parts],  # noqa: FBT003
        )
        slices = [(member, table.read(answer)) for member, answer in answers.items()]
        keys = [
            (skips[member], table.keys(rows, window), count)
            for member, (rows, count, _) in slices
        ]
        fitted = None if silent else slices_fit(keys, window)
        if fitted is None:
            return None
        places, inside = fitted
        rows = [(slices[index][0], slices[index][1][0][row]) for index, row in inside]
        order = (member for member, _ in slices)
        total = sum(count for _, _, count in keys)
        return dict(zip(order, places, strict=True)), rows, total, {}

    async def _window_from_all(
        self, table: "_Rowset", window: RowWindow, members: list[Member]
    ) -> tuple[Places, list[tuple[Member, Any]], int, dict[str, str]]:
        """Read a window without a known position.

        Near the front, each node sends its first rows. Further down, it first sends the sort
        keys of all its rows, and then the rows that lie in the window.
        """
        end = window.skip + window.limit
        is_near = end <= NEAR
        first = replace(window, skip=0, limit=end if is_near else 0)
        answers, silent = await self._ask_all(
            members, [table.question(first, not is_near)] * len(members)
        )
        tables = {member: table.read(answer) for member, answer in answers.items()}
        order = list(tables)
        if is_near:
            keys = [table.keys(tables[member][0], window) for member in order]
        else:
            keys = [tables[member][2] or [(0, 0)] * tables[member][1] for member in order]
        places, turns = share(keys, window)
        remaining: dict[Member, Iterator[Any]] = {}
        shares = [
            (member, place) for member, place in zip(order, places, strict=True) if place[1]
        ]
        if is_near:
            remaining = {member: iter(tables[member][0][skip:]) for member, (skip, _) in shares}
        else:
            parts = [replace(window, skip=s, limit=n) for _, (s, n) in shares]
            more_answers, more_silent = await self._ask_all(
                [member for member, _ in shares],
                [table.question(part, False) for part in parts],  # noqa: FBT003
            )
            silent |= more_silent
            remaining = {
                member: iter(table.read(answer)[0]) for member, answer in more_answers.items()
            }
        rows = list(_dealt(order, turns, remaining))
        count = sum(answer[1] for answer in tables.values())
        return dict(zip(order, places, strict=True)), rows, count, silent

    async def _ask_all(
        self, members: list[Member], questions: list[Query[Any]]
    ) -> tuple[dict[Member, Any], dict[str, str]]:
        """Ask several nodes concurrently; return answers by member, and errors by name."""
        asks = [
            self.ask(member.node_id, question)
            for member, question in zip(members, questions, strict=True)
        ]
        outcomes = await asyncio.gather(*asks, return_exceptions=True)
        answers, silent = {}, {}
        for member, answer in zip(members, outcomes, strict=True):
            if isinstance(answer, CallboardError):
                silent[member.name] = str(answer)[:500]
            elif isinstance(answer, BaseException):
                raise answer
            else:
                answers[member] = answer
        return answers, silent


_SUMS: Final = ("sent", "confirmed", "lost", "in_flight")
_CURVES: Final = ("handled", "sent", "lost")


def _figures(inspection: Inspection) -> dict[str, float]:
    """Return the figures of a node that are kept as history."""
    sums = {
        name: float(sum(getattr(row, name) for row in inspection.accounts)) for name in _SUMS
    }
    own = {
        name: float(getattr(inspection, name))
        for name in ("handled", *ALARMS)
        if name != "lost"
    }
    return {
        **own,
        **sums,
        "frames": float(sum(link.frames_sent for link in inspection.neighbours)),
    }


def curves(samples: Mapping[str, Sequence[Row]], now: float) -> dict[str, Any]:
    """Return the curves of several nodes, at common times.

    Args:
        samples: by node the samples of the last hour, the oldest first.
        now: seconds of the wall clock.
    """
    columns: dict[str, dict[int, float]] = {
        name: {} for name in (*_CURVES, "waiting", "waited")
    }
    memory: dict[str, dict[int, float]] = {}
    for node, rows in samples.items():
        for former, row in itertools.pairwise(rows):
            moment = round((now - row["age"]) / HOUR_INTERVAL) * int(HOUR_INTERVAL)
            passed = max(former["age"] - row["age"], 0.001)
            for name in _CURVES:
                rate = max(0.0, row[name] - former[name]) / passed
                columns[name][moment] = columns[name].get(moment, 0.0) + rate
            waiting = columns["waiting"]
            waiting[moment] = waiting.get(moment, 0.0) + row["waiting"]
            waited = columns["waited"]
            waited[moment] = max(waited.get(moment, 0.0), row["waited"])
            memory.setdefault(node, {})[moment] = row["resident_bytes"]
    times = sorted(columns["handled"])
    largest = heapq.nlargest(
        MEMORY_CURVES, memory, key=lambda node: max(memory[node].values(), default=0.0)
    )
    return {
        "times": times,
        **{
            name: [round(column[moment], 2) for moment in times]
            for name, column in columns.items()
        },
        "memory": {
            node: [memory[node].get(moment) for moment in times] for node in sorted(largest)
        },
    }


def _dealt(
    order: list[Member], turns: list[int], remaining: dict[Member, Iterator[Any]]
) -> Iterable[tuple[Member, Any]]:
    """Merge the rows of several nodes: `turns` has for each row the index of its node."""
    for turn in turns:
        member = order[turn]
        row = next(remaining.get(member, iter(())), None)
        if row is not None:
            yield member, row
