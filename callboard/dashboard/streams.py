"""Streams of pages: what one shows at first, and what changes, once or twice a second.

A page names a view and its parameters, as the API takes them. Rows go out as an object by key
and the order of keys, so that a difference tells of the rows that changed and no other.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from typing import Any, Final

from callboard.commitlog.json_text import to_json
from callboard.dashboard import api
from callboard.dashboard.collector import ClusterWatch
from callboard.dashboard.difference import difference
from callboard.dashboard.errors import explained
from callboard.endpoint.hub import Hub
from callboard.endpoint.message_queue import MessageQueue
from callboard.kernel.errors import CallboardError

#: Pages that may be open at a time.
STREAMS: Final = 32

#: By what rows are told apart, the first column that they have; all rows begin with a node.
_KEYS: Final = (
    *("address", "id", "key", "client_id", "topic", "filter", "store", "ban", "folder"),
    *("query", "router", "peer", "number", "node_id"),
)

#: Messages of topics that wait for a page which listens, and seconds between two looks.
LISTENED: Final = 500
LISTEN_INTERVAL: Final = 0.25

#: Characters of values, as JSON, that a page which listens is told at once; and of one of them.
HEARD: Final = 1 << 18
HEARD_VALUE: Final = 20_000

#: Columns that rise with time by themselves: they are told with what else changes of a row, and
#: in one of so many rounds.
_RISING: Final = frozenset({"age", "uptime"})
RISING_ROUNDS: Final = 5


#: What a page is told, one after the other.
Changes = AsyncGenerator[dict[str, Any], None]

Answer = Callable[[], Coroutine[Any, Any, dict[str, Any]]]


class Streams:
    """The streams of one dashboard."""

    def __init__(self, collector: ClusterWatch) -> None:
        self._collector = collector

    def changes(self, given: Mapping[str, str]) -> Changes:
        """Return what a page is told: `{"whole": …}`, then `{"patch": …}` for each change.

        Raises:
            InvalidParameter: there is no such view, or a parameter is of no use.
        """
        name = given.get("view", "overview")
        if name == "listen":
            topic = given.get("topic", "")
            if not topic or len(topic) > api.TEXT:
                msg = "topic is missing: what is listened to"
                raise api.InvalidParameter(msg)
            return self._listen(topic)
        view = api.VIEWS.get(name)
        if view is None:
            msg = f"view is one of {', '.join(api.VIEWS)}, listen"
            raise api.InvalidParameter(msg)
        asked = view.read(given)
        return self._follow((name, *asked.items()), lambda: self._answer(view, asked))

    async def _answer(self, view: api.View, asked: api.Asked) -> dict[str, Any]:
        """Return what a view shows now."""
        try:
            told = _keyed(await view.answer(self._collector, asked))
        except CallboardError as error:
            told = {"error": explained(error)[1]}
        return {**told, "summary": _summary(self._collector)}

    async def _follow(self, asked: object, answer: Answer) -> Changes:
        """Tell a view, and what changes of it; pages that show the same share one answer."""
        collector, shown, seen = self._collector, None, 0
        async with collector.watched():
            seen = collector.rounds if collector.members else 0
            while True:
                seen = (
                    await collector.next_round(seen) if shown or not collector.members else seen
                )
                told = await collector.shared(asked, answer)
                unless = _RISING if collector.rounds % RISING_ROUNDS else frozenset()
                if shown is None:
                    yield {"whole": told}
                elif change := difference(shown, told, unless):
                    yield {"patch": change}
                else:
                    yield {}
                shown = told

    async def _listen(self, topic: str) -> Changes:
        """Tell what is published on a topic, and all that begin so, while a page listens."""
        queue: MessageQueue[tuple[str, Any]] = MessageQueue(LISTENED)
        hub = Hub.of(self._collector.node)
        await hub.add_receiver(queue, [topic], sees_own=True)
        try:
            yield {"listening": topic}
            dropped = 0
            while True:
                found = queue.poll()
                missed, dropped = queue.dropped - dropped, queue.dropped
                yield heard(found, missed) if found else {}
                await asyncio.sleep(LISTEN_INTERVAL)
        finally:
            hub.remove_receiver(queue)


def heard(found: Sequence[tuple[str, Any]], missed: int) -> dict[str, Any]:
    """Return the latest messages that are not too much at once, and how many are left out."""
    told: list[dict[str, Any]] = []
    size = 0
    for topic, value in reversed(found):
        text = to_json(value)
        is_long = len(text) > HEARD_VALUE
        size += len(topic) + min(len(text), HEARD_VALUE)
        if told and size > HEARD:
            break
        told.append({"topic": topic, "value": f"{text[:HEARD_VALUE]}…" if is_long else value})
    return {"messages": told[::-1], "left_out": len(found) - len(told) + missed}


def _summary(collector: ClusterWatch) -> dict[str, Any]:
    """Return what the head of each page shows."""
    states = [member.state for member in collector.members.values()]
    bad = sum(state in ("lost", "silent") for state in states)
    return {"nodes": len(states), "bad": bad, "alarms": len(collector.alarms())}


def _keyed(answer: dict[str, Any]) -> dict[str, Any]:
    """Return an answer with each of its lists of rows as an object by key, and an order."""
    keyed: dict[str, Any] = {}
    for name, value in answer.items():
        is_rows = isinstance(value, list) and all(isinstance(each, dict) for each in value)
        if is_rows and name != "kinds":
            rows: dict[str, Any] = {}
            for row in value:
                key = first = _key(row)
                while key in rows:
                    key = f"{first}#{len(rows)}"
                rows[key] = row
            keyed[name] = {"order": list(rows), "rows": rows}
        else:
            keyed[name] = value
    return keyed


def _key(row: dict[str, Any]) -> str:
    """Return what tells a row from all others."""
    if "from_id" in row:
        return f"{row['from_id']}>{row['to_id']}"
    if "a" in row and "b" in row:
        return f"{row['a']}-{row['b']}"
    if "actor" in row:
        return str(row["actor"]["address"])
    found = next((str(row[name]) for name in _KEYS if name in row), str(row.get("kind", "")))
    return f"{row.get('node', '')}|{found}"
