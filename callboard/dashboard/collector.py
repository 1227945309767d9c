"""The collector: asks the nodes in reach, and keeps ten minutes of what they told.

It works only while somebody watches: the first one who does starts its task and its
subscription to the node's events, the last one ends both. Each node is asked by itself, so that
one that does not answer holds nobody up, and each is told apart: `up`, `silent` (it did not
answer lately), `lost` (no path leads there), `draining`.

All of it runs on the loop of those who watch. Nodes are asked as any command asks them, so what
is seen follows the rights of the node that asks.
"""

import asyncio
import contextlib
import itertools
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
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
from callboard.support.parts import Key, Row, RowWindow, event_row, key_of, share, slices_fit

#: Seconds between two rounds of questions; and the shortest time between two of them.
INTERVAL: Final = 1.0
SHORTEST: Final = 0.1

#: Seconds that a node has to answer; after `SILENT` it is shown as silent.
PATIENCE: Final = 3.0
SILENT: Final = 1.5

#: Looks that are kept: ten minutes; and events of all nodes.
KEPT: Final = 600
EVENTS_KEPT: Final = 2_000
EVENTS_READ: Final = 200

#: Seconds for which a node that was lost is shown, and how many of them at most.
LOST_SHOWN: Final = 600.0
LOST_MOST: Final = 50

#: Seconds in which what went wrong is an alarm.
ALARM: Final = 60.0

#: Rows below which a window is taken from the front of each node's, without asking for keys.
NEAR: Final = 200

T = TypeVar("T")

#: Rows that each node tells beyond those that it had in a window, and windows that are known.
MARGIN: Final = 10
PLACES: Final = 64

#: Rows of one node, how many it has, and by what all are sorted.
Told = tuple[list[Any], int, list[Any]]

#: The figures of a node whose rates are kept.
RATED: Final = ("handled", "sent", "confirmed", "lost", "frames")

#: What counts as an alarm where it rose: figure, and what it means.
ALARMS: Final = {
    "slow_handlers": "handlers held their thread for more than a second",
    "overflows": "messages did not fit into full mailboxes",
    "lost": "messages are lost or unconfirmed",
    "dead_letters": "messages came to actors that had ended",
    "expired": "asks were too late before their turn",
    "failures_count": "handlers raised",
    "restarts": "actors were started again",
    "exhausted": "supervisors gave up",
}


@dataclass(eq=False)
class Member:
    """What is known of one node.

    Attributes:
        told: its latest answer.
        state: `up`, `silent`, `lost`, `draining`, or `refused` where rights do not suffice.
        since: when that began, on the monotonic clock.
        history: times and figures that were told, the oldest first.
        events: the number of its latest event that was read.
    """

    node_id: bytes
    name: str
    hops: int = 0
    told: Inspection | None = None
    state: str = "silent"
    error: str = ""
    since: float = 0.0
    answered: float = 0.0
    is_asked: bool = False
    events: int = -1
    history: deque[tuple[float, dict[str, float]]] = field(
        default_factory=lambda: deque(maxlen=KEPT)
    )

    def turn(self, state: str, now: float, error: str = "") -> bool:
        """Take another state; returns whether it is another one."""
        self.error = error
        if state == self.state:
            return False
        self.state, self.since = state, now
        return True

    @property
    def is_mute(self) -> bool:
        """Whether it did not answer lately; not one that was never asked."""
        return self.state == "silent" and bool(self.error)

    def rate(self, figure: str) -> float:
        """Return how fast a figure rose between the latest two looks."""
        if len(self.history) < 2:
            return 0.0
        (before, old), (at, new) = self.history[-2], self.history[-1]
        return max(0.0, (new.get(figure, 0.0) - old.get(figure, 0.0)) / max(at - before, 0.001))

    def rises(self, now: float) -> dict[str, int]:
        """Return by how much figures rose in the time of an alarm."""
        if not self.history:
            return {}
        last = first = self.history[-1][1]
        for at, values in reversed(self.history):
            if now - at > ALARM:
                break
            first = values
        return {name: max(0, int(last[name] - first[name])) for name in ALARMS}


#: The rows of a window with their nodes, how many there are in all, and who is silent.
Found = tuple[list[tuple[Member, Any]], int, dict[str, str]]

#: How many rows of each node lie before a window, and in it.
Places = dict[Member, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class _Rowset:
    """Rows that several nodes have: how a window of them is asked for, and what is answered."""

    what: tuple[str, str]
    question: Callable[[RowWindow, bool], Query[Any]]
    read: Callable[[Any], Told]
    key: Callable[[Any], object]

    def keys(self, rows: list[Any], window: RowWindow) -> list[Key]:
        """Return by what rows are sorted."""
        return [key_of(self.key(row)) if window.sort else (0, 0) for row in rows]


class ClusterWatch:
    """What is known of the cluster of a node, as long as somebody watches."""

    def __init__(
        self, node: Node, *, shows_itself: bool = True, interval: float = INTERVAL
    ) -> None:
        """Do nothing yet.

        Args:
            node: whose cluster is looked at.
            shows_itself: whether that node is a member; not one that only looks.
            interval: seconds between two rounds.
        """
        self.node = node
        self._shows_itself = shows_itself
        self.interval = interval
        self.members: dict[bytes, Member] = {}
        self.events: deque[dict[str, Any]] = deque(maxlen=EVENTS_KEPT)
        #: Rises with each round.
        self.rounds = 0
        self._watchers = 0
        self._numbers = itertools.count(1)
        self._task: asyncio.Task[None] | None = None
        self._turned = asyncio.Condition()
        self._hurry = asyncio.Event()
        self._stack = contextlib.ExitStack()
        self._asked: set[asyncio.Task[None]] = set()
        #: Answers of this round that several may want, and the latest alarms with their round.
        self._shared: dict[object, asyncio.Task[Any]] = {}
        self._alarms: tuple[int, list[dict[str, Any]]] = (-1, [])
        #: Window → for each node the rows before it and in it, when it was looked at last.
        self._places: dict[object, Places] = {}

    @property
    def is_at_work(self) -> bool:
        """Whether somebody watches: only then has it a task, a timer and a subscription."""
        return self._task is not None

    @contextlib.asynccontextmanager
    async def watched(self) -> AsyncIterator["ClusterWatch"]:
        """Collect while the block runs."""
        self._watchers += 1
        if self._task is None:
            loop = asyncio.get_running_loop()
            self._turned, self._hurry = asyncio.Condition(), asyncio.Event()

            def note(event: object) -> None:
                if isinstance(event, NodeDown | NodeUp | LinkDown | LinkUp):
                    with contextlib.suppress(RuntimeError):  # the loop has ended
                        loop.call_soon_threadsafe(self._hurry.set)

            self._stack.enter_context(self.node.subscribed(note))
            self._task = loop.create_task(self._collect())
        try:
            yield self
        finally:
            self._watchers -= 1
            if not self._watchers:
                self._end()

    def _end(self) -> None:
        """Stop: nobody watches."""
        if self._task is not None:
            self._task.cancel()
            self._task = None
        for task in (*self._asked, *self._shared.values()):
            task.cancel()
        self._shared, self._places = {}, {}
        self._stack.close()
        for member in self.members.values():
            member.is_asked = False

    async def next_round(self, seen: int) -> int:
        """Wait until a round ended behind that of number `seen`; returns its number."""
        async with self._turned:
            await self._turned.wait_for(lambda: self.rounds > seen)
        return self.rounds

    async def shared(self, asked: object, answer: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return an answer that is made once in a round, for all who ask the same."""
        task = self._shared.get(asked)
        if task is None:
            task = self._shared[asked] = asyncio.get_running_loop().create_task(answer())
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
        found: T = await asyncio.shield(task)
        return found

    # --- asking ---

    async def _collect(self) -> None:
        """Ask all nodes, round after round."""
        while True:
            begun = time.monotonic()
            self._hurry.clear()
            self._take_stock(begun)
            asked = [self._spawn(each) for each in self.asked() if not each.is_asked]
            if asked:  # quick ones are shown in this round, and slow ones in a later one
                await asyncio.wait(asked, timeout=min(self.interval / 2, 0.25))
            self._look_for_silence(time.monotonic())
            self.rounds += 1
            self._shared = {}
            async with self._turned:
                self._turned.notify_all()
            left = self.interval - (time.monotonic() - begun)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._hurry.wait(), max(left, SHORTEST))
            if self._hurry.is_set():
                await asyncio.sleep(max(0.0, SHORTEST - (time.monotonic() - begun)))

    def _spawn(self, member: Member) -> asyncio.Task[None]:
        """Begin to ask one node."""
        member.is_asked = True
        task = asyncio.get_running_loop().create_task(self._ask(member))
        self._asked.add(task)
        task.add_done_callback(self._asked.discard)
        return task

    def _take_stock(self, now: float) -> None:
        """Take the nodes in reach, and note those that are gone."""
        node, here = self.node, {}
        if self._shows_itself:
            here[node.node_id] = (node.name, 0)
        here |= {each.node_id: (each.name, each.hops) for each in node.nodes()}
        for node_id, (name, hops) in here.items():
            member = self.members.get(node_id)
            if member is None:
                member = self.members[node_id] = Member(node_id, name, since=now, answered=now)
            member.name, member.hops = name or member.name, hops
            if member.state == "lost":
                member.turn("silent", now)
                member.answered = now
        for member in self.members.values():
            if member.node_id not in here:
                member.turn("lost", now)
        lost = [each for each in self.members.values() if each.state == "lost"]
        lost.sort(key=lambda each: -each.since)
        for index, member in enumerate(lost):
            again = any(self.members[other].name == member.name for other in here)
            old = now - member.since > (10.0 if again else LOST_SHOWN)
            if old or index >= LOST_MOST:
                del self.members[member.node_id]

    def _look_for_silence(self, now: float) -> None:
        """Note the nodes that did not answer lately."""
        for member in self.asked():
            if now - member.answered > SILENT and member.state in ("up", "draining"):
                member.turn("silent", now, "it does not answer")

    def asked(self) -> list[Member]:
        """Return the nodes that can be asked."""
        return [each for each in self.members.values() if each.state != "lost"]

    async def ask(self, node_id: bytes, question: Query[Any]) -> Any:
        """Ask the inspector of a node.

        Raises:
            CallboardError: it does not answer, or may not.
        """
        return await self.node.context.ref_of(node_id, INSPECTOR).ask(question, PATIENCE)

    async def _ask(self, member: Member) -> None:
        """Ask a node for its figures, and for what happened there."""
        try:
            told = await self.ask(member.node_id, Inspect(0, accounts=True))
            page = await self.ask(
                member.node_id, ReadEvents(member.events, EVENTS_READ, starts=False)
            )
        except CallboardError as error:
            if member.state != "lost":
                refused = type(error).__name__ == "NotPermitted"
                state = "refused" if refused else "silent"
                member.turn(state, time.monotonic(), str(error)[:500])
            return
        finally:
            member.is_asked = False
        now = member.answered = time.monotonic()
        if isinstance(told, Inspection) and member.state != "lost":
            member.told, member.name = told, told.name or member.name
            member.turn("draining" if told.is_draining else "up", now)
            member.history.append((now, _figures(told)))
        self._take_events(member, page)

    def _take_events(self, member: Member, page: Any) -> None:
        """Keep what happened on a node."""
        now, member.events = datetime.now(UTC), page.last
        for event in page.events:
            if event.values.get("is_tool") == "True":
                continue  # the link of who looks, for instance
            row = event_row(event, now)
            row.pop("is_tool", None)
            named = {"id": next(self._numbers), "at": member.name}
            self.events.append(named | row)

    # --- what is known ---

    def nodes(self) -> list[dict[str, Any]]:
        """Return a row for each node: what it told, without lists, and what became of it."""
        now = time.monotonic()
        rows = []
        for member in sorted(self.members.values(), key=lambda each: each.name):
            told = member.told or Inspection(
                member.name, 0.0, [], 0, 0, 0, 0, 0, is_draining=False
            )
            values = {each.name: getattr(told, each.name) for each in fields(told)}
            flat = {name: each for name, each in values.items() if not isinstance(each, list)}
            sent = {each: sum(getattr(row, each) for row in told.accounts) for each in _SUMS}
            rates = {f"{each}_rate": round(member.rate(each), 1) for each in RATED}
            state = {"state": member.state, "for": round(now - member.since, 1)}
            about = {
                "node_id": member.node_id.hex(),
                "hops": member.hops,
                "error": member.error,
            }
            rows.append({"node": member.name, **about, **state, **flat, **sent, **rates})
        return rows

    def links(self) -> list[dict[str, Any]]:
        """Return a row for each link between two nodes that are shown, also a lost one."""
        rows: dict[tuple[str, str], dict[str, Any]] = {}
        for member in self.members.values():
            for link in () if member.told is None else member.told.neighbours:
                other = self.members.get(link.peer)
                if other is None or link.is_tool:
                    continue
                states = {member.state, other.state}
                state = next((s for s in ("lost", "silent") if s in states), "up")
                first, last = sorted((member.node_id.hex(), link.peer.hex()))
                row = rows.setdefault(
                    (first, last), {"a": first, "b": last, "state": state, "frames": 0}
                )
                row["frames"] += link.frames_sent
                row["waiting"] = row.get("waiting", 0) + link.bytes_waiting
        return list(rows.values())

    def pairs(self) -> list[dict[str, Any]]:
        """Return a row for each pair of nodes: what one sent to the other, and its balance."""
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
            if member.told is not None
            for account in member.told.accounts
            if account.sent or account.waiting
        ]

    def alarms(self) -> list[dict[str, Any]]:
        """Return what is wrong: nodes that are lost or silent, and what rose in a minute."""
        if self._alarms[0] == self.rounds:
            return self._alarms[1]
        now, found = time.monotonic(), []
        for member in self.members.values():
            if member.state in ("lost", "silent", "refused") and now - member.since > 0.0:
                text = f"{member.name} is {member.state}"
                found.append(
                    {"node": member.name, "kind": member.state, "text": text, "count": 1}
                )
            for figure, count in member.rises(now).items() if member.state != "lost" else ():
                if count:
                    row = {"node": member.name, "kind": figure, "count": count}
                    found.append(row | {"text": f"{count:,} {ALARMS[figure]}"})
        self._alarms = self.rounds, found
        return found

    def history(self) -> dict[str, Any]:
        """Return the rates of the last ten minutes, of all nodes together, by second."""
        sums: dict[int, dict[str, float]] = {}
        for member in self.members.values():
            for (before, old), (at, new) in itertools.pairwise(member.history):
                second = sums.setdefault(
                    int(at), dict.fromkeys(("handled", "sent", "lost"), 0.0)
                )
                for name in second:
                    second[name] += max(0.0, (new[name] - old[name]) / max(at - before, 0.001))
        offset = time.time_ns() / 1e9 - time.monotonic()
        times = sorted(sums)
        series = {name: [round(sums[at][name], 1) for at in times] for name in _CURVES}
        return {"times": [round(at + offset) for at in times], **series}

    # --- windows over all nodes ---

    async def actors(
        self, window: RowWindow, *, node: str = "", state: str = ""
    ) -> tuple[list[tuple[Member, ActorInfo]], int, dict[str, str]]:
        """Return the actors in a window over all nodes, their number, and who is silent."""

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

        def read(told: Inspection) -> Told:
            return told.actors, told.actor_count, told.keys

        sort = {"class": "actor_class"}.get(window.sort, window.sort)
        table = _Rowset(("actors", state), question, read, attrgetter(sort))
        return await self._window(table, window, node)

    async def rows(
        self, part: str, window: RowWindow, *, which: str = "", node: str = ""
    ) -> tuple[list[tuple[Member, dict[str, Any]]], int, dict[str, str]]:
        """Return the rows of a part in a window over all nodes, their number, who is silent."""

        def question(one: RowWindow, keys: bool) -> ReadPart:  # noqa: FBT001
            asked = (one.search, one.sort, one.rising, one.skip, one.limit)
            return ReadPart(part, which, *asked, keys)

        def read(told: PartRows) -> Told:
            return told.rows, told.count, told.keys

        def key(row: Row) -> object:
            return row.get(window.sort)

        return await self._window(_Rowset((part, which), question, read, key), window, node)

    async def _window(self, table: "_Rowset", window: RowWindow, node: str) -> Found:
        """Find a window over all nodes.

        One that was looked at before is asked for where its rows lay on each node, and a few
        around them; so nobody tells of rows that are not shown. A node that does not answer is
        not waited for.
        """
        there = [each for each in self.asked() if node in ("", each.name, each.node_id.hex())]
        mute = {each.name: each.error for each in there if each.is_mute}
        members, place = (
            [each for each in there if not each.is_mute],
            (table.what, window, node),
        )
        known, found = self._places.pop(place, {}), None
        if known and known.keys() == set(members):
            found = await self._window_there(table, window, known)
        places, rows, count, silent = found or await self._window_anew(table, window, members)
        if not silent:
            while len(self._places) >= PLACES:
                del self._places[next(iter(self._places))]
            self._places[place] = places
        return rows, count, mute | silent

    async def _window_there(
        self, table: "_Rowset", window: RowWindow, known: Places
    ) -> tuple[Places, list[tuple[Member, Any]], int, dict[str, str]] | None:
        """Look for a window where it was; None where its rows have moved too far."""
        skips = {each: max(0, skip - MARGIN) for each, (skip, _) in known.items()}
        parts = [
            replace(window, skip=skips[each], limit=skip + taken + MARGIN - skips[each])
            for each, (skip, taken) in known.items()
        ]
        told, silent = await self._ask_all(
            list(known),
            [table.question(part, False) for part in parts],  # noqa: FBT003
        )
        slices = [(each, table.read(answer)) for each, answer in told.items()]
        keys = [
            (skips[each], table.keys(rows, window), count) for each, (rows, count, _) in slices
        ]
        fit = None if silent else slices_fit(keys, window)
        if fit is None:
            return None
        places, inside = fit
        rows = [(slices[index][0], slices[index][1][0][at]) for index, at in inside]
        order = (each for each, _ in slices)
        return dict(zip(order, places, strict=True)), rows, sum(each[2] for each in keys), {}

    async def _window_anew(
        self, table: "_Rowset", window: RowWindow, members: list[Member]
    ) -> tuple[Places, list[tuple[Member, Any]], int, dict[str, str]]:
        """Find a window wherever it is.

        Near the front each node tells its first rows; further down it tells by what its rows
        are sorted, and then those that lie in the window.
        """
        until = window.skip + window.limit
        is_near = until <= NEAR
        first = replace(window, skip=0, limit=until if is_near else 0)
        told, silent = await self._ask_all(
            members, [table.question(first, not is_near)] * len(members)
        )
        found = {member: table.read(answer) for member, answer in told.items()}
        order = list(found)
        if is_near:
            keys = [table.keys(found[each][0], window) for each in order]
        else:
            keys = [found[each][2] or [(0, 0)] * found[each][1] for each in order]
        places, turns = share(keys, window)
        left: dict[Member, Iterator[Any]] = {}
        wanted = [(each, place) for each, place in zip(order, places, strict=True) if place[1]]
        if is_near:
            left = {each: iter(found[each][0][skip:]) for each, (skip, _) in wanted}
        else:
            parts = [replace(window, skip=s, limit=n) for _, (s, n) in wanted]
            again, late = await self._ask_all(
                [each for each, _ in wanted],
                [table.question(part, False) for part in parts],  # noqa: FBT003
            )
            silent |= late
            left = {each: iter(table.read(answer)[0]) for each, answer in again.items()}
        rows = list(_dealt(order, turns, left))
        count = sum(each[1] for each in found.values())
        return dict(zip(order, places, strict=True)), rows, count, silent

    async def _ask_all(
        self, members: list[Member], questions: list[Query[Any]]
    ) -> tuple[dict[Member, Any], dict[str, str]]:
        """Ask several nodes at once; returns answers, and why there is none."""
        asked = [self.ask(each.node_id, q) for each, q in zip(members, questions, strict=True)]
        told = await asyncio.gather(*asked, return_exceptions=True)
        answers, silent = {}, {}
        for member, answer in zip(members, told, strict=True):
            if isinstance(answer, CallboardError):
                silent[member.name] = str(answer)[:500]
            elif isinstance(answer, BaseException):
                raise answer
            else:
                answers[member] = answer
        return answers, silent


_SUMS: Final = ("sent", "confirmed", "lost", "in_flight")
_CURVES: Final = ("handled", "sent", "lost")


def _figures(told: Inspection) -> dict[str, float]:
    """Return the figures of a node whose rises are told."""
    sums = {name: float(sum(getattr(row, name) for row in told.accounts)) for name in _SUMS}
    own = {name: float(getattr(told, name)) for name in ("handled", *ALARMS) if name != "lost"}
    return {**own, **sums, "frames": float(sum(link.frames_sent for link in told.neighbours))}


def _dealt(
    order: list[Member], turns: list[int], left: dict[Member, Iterator[Any]]
) -> Iterable[tuple[Member, Any]]:
    """Yield the rows of several nodes in the order in which they follow one another."""
    for turn in turns:
        member = order[turn]
        row = next(left.get(member, iter(())), None)
        if row is not None:
            yield member, row
