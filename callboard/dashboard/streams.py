"""Streams of the dashboard's pages: the first contents, then changes about once a second.

A page names a view and its parameters as in the API. Rows are sent as an object by key and a
list with the order of the keys, so that a patch contains only the rows that changed.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from typing import Any, Final

from callboard.commitlog.json_text import to_json
from callboard.dashboard import api
from callboard.dashboard.collector import ClusterWatch
from callboard.dashboard.difference import difference
from callboard.dashboard.errors import explained
from callboard.kernel.errors import CallboardError
from callboard.topics.hub import Hub
from callboard.topics.message_queue import MessageQueue

#: Pages that may be open at the same time.
STREAMS: Final = 32

#: Key columns: the first of these that a row has, together with its node, is its key.
_KEYS: Final = (
    *("address", "id", "key", "client_id", "topic", "filter", "store", "ban", "folder"),
    *("query", "router", "peer", "number", "node_id"),
)

#: Messages queued for a page that listens to a topic, and seconds between two polls.
LISTENED: Final = 500
LISTEN_INTERVAL: Final = 0.25

#: Characters of JSON sent at once to a page that listens, and characters of one value.
HEARD: Final = 1 << 18
HEARD_VALUE: Final = 20_000

#: Columns that grow with time alone. They are sent when another column of their row changes,
#: and otherwise in one of `RISING_ROUNDS` rounds.
_RISING: Final = frozenset({"age", "uptime"})
RISING_ROUNDS: Final = 5


#: The messages of a stream.
Changes = AsyncGenerator[dict[str, Any], None]

Answer = Callable[[], Coroutine[Any, Any, dict[str, Any]]]


class Streams:
    """The streams of one dashboard."""

    def __init__(self, collector: ClusterWatch) -> None:
        self._collector = collector

    def changes(self, parameters: Mapping[str, str]) -> Changes:
        """Return the stream of a page: `{"whole": …}`, then `{"patch": …}` for each change.

        Raises:
            InvalidParameter: the view is unknown, or a parameter is invalid.
        """
        name = parameters.get("view", "overview")
        if name == "listen":
            topic = parameters.get("topic", "")
            if not topic or len(topic) > api.TEXT:
                msg = f"topic is missing or longer than {api.TEXT} characters"
                raise api.InvalidParameter(msg)
            return self._listen(topic)
        view = api.VIEWS.get(name)
        if view is None:
            msg = f"view must be one of {', '.join(api.VIEWS)}, listen"
            raise api.InvalidParameter(msg)
        query = view.read(parameters)
        return self._follow((name, *query.items()), lambda: self._answer(view, query))

    async def _answer(self, view: api.View, query: api.Asked) -> dict[str, Any]:
        """Return the current contents of a view."""
        try:
            contents = _keyed(await view.answer(self._collector, query))
        except CallboardError as error:
            contents = {"error": explained(error)[1]}
        return {**contents, "summary": _summary(self._collector)}

    async def _follow(self, query: object, answer: Answer) -> Changes:
        """Yield a view and its changes; pages with the same view share one answer a round."""
        collector, previous, round_seen = self._collector, None, 0
        async with collector.watched():
            round_seen = collector.rounds if collector.members else 0
            while True:
                round_seen = (
                    await collector.next_round(round_seen)
                    if previous or not collector.members
                    else round_seen
                )
                contents = await collector.shared(query, answer)
                unless = _RISING if collector.rounds % RISING_ROUNDS else frozenset()
                if previous is None:
                    yield {"whole": contents}
                elif change := difference(previous, contents, unless):
                    yield {"patch": change}
                else:
                    yield {}
                previous = contents

    async def _listen(self, topic: str) -> Changes:
        """Yield publications on a topic and on topics with this prefix."""
        queue: MessageQueue[tuple[str, Any]] = MessageQueue(LISTENED)
        hub = Hub.of(self._collector.node)
        await hub.add_receiver(queue, [topic], sees_own=True)
        try:
            yield {"listening": topic}
            dropped = 0
            while True:
                messages = queue.poll()
                missed, dropped = queue.dropped - dropped, queue.dropped
                yield heard(messages, missed) if messages else {}
                await asyncio.sleep(LISTEN_INTERVAL)
        finally:
            hub.remove_receiver(queue)


def heard(items: Sequence[tuple[str, Any]], missed: int) -> dict[str, Any]:
    """Return the latest messages up to the size limit, and the number left out."""
    rows: list[dict[str, Any]] = []
    size = 0
    for topic, value in reversed(items):
        text = to_json(value)
        is_long = len(text) > HEARD_VALUE
        size += len(topic) + min(len(text), HEARD_VALUE)
        if rows and size > HEARD:
            break
        rows.append({"topic": topic, "value": f"{text[:HEARD_VALUE]}…" if is_long else value})
    return {"messages": rows[::-1], "left_out": len(items) - len(rows) + missed}


def _summary(collector: ClusterWatch) -> dict[str, Any]:
    """Return the counts in the header of each page."""
    states = [member.state for member in collector.members.values()]
    bad = sum(state in ("lost", "silent") for state in states)
    return {"nodes": len(states), "bad": bad, "alarms": len(collector.alarms())}


def _keyed(answer: dict[str, Any]) -> dict[str, Any]:
    """Replace each list of rows in an answer by an object with the rows by key, in order."""
    keyed: dict[str, Any] = {}
    for name, value in answer.items():
        is_rows = isinstance(value, list) and all(isinstance(row, dict) for row in value)
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
    """Return the key of a row."""
    if "from_id" in row:
        return f"{row['from_id']}>{row['to_id']}"
    if "a" in row and "b" in row:
        return f"{row['a']}-{row['b']}"
    if "actor" in row:
        return str(row["actor"]["address"])
    key = next((str(row[name]) for name in _KEYS if name in row), str(row.get("kind", "")))
    return f"{row.get('node', '')}|{key}"
