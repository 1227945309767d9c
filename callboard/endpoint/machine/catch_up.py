"""Catch-up: values for receivers that were in reach, but not yet known here, when published.

News of an endpoint travel from node to node, and its filter follows. A value that is published
in the meantime has no receiver there yet. So a core keeps what it published of late, and sends
it to an endpoint as soon as the filter of that endpoint arrives. The source alone sends, so
each value arrives once, whatever the nodes between know, and old nodes take part unchanged.

Only values count that were published when the receiver was subscribed and in reach. Its node
knows since when it is subscribed. Nobody knows when it came into reach of the source, but each
node on the way knows when it heard of each of the others. Two nodes were in reach of each other
when one of them heard of the other, and so were those at the ends of a chain of such pairs. Of
all these chains that gives the earliest time; a peering is in one as soon as it is established.

The source asks with a ping, which nodes of older releases echo. Until the answers are there,
values for the receiver wait, so that it gets all of them in order. An answer has an age, and
the event happened at most so long before the question was sent: that is exact up to the time
which the question was under way. An answer has the reading of the clock too: one that lies
between question and answer comes from the same clock, and makes the age exact.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from itertools import islice
from operator import itemgetter
from typing import Any, Final, NamedTuple

from callboard.endpoint.machine.effect import Item, TransmitRun
from callboard.endpoint.machine.run import PackedType, pack_runs
from callboard.endpoint.machine.topic import RESERVED
from callboard.support.dataclass import dataclass

#: Seconds for which a published value is kept: a path may break while filters are exchanged.
KEEP_SECONDS: Final = 10.0
#: Messages that are kept at most, and their bytes.
KEEP_MESSAGES: Final = 32_768
KEEP_BYTES: Final = 4 * 1024 * 1024
#: Seconds that a node may take to answer.
ANSWER_SECONDS: Final = 3.0
#: Seconds after which a node on the way is known to have no endpoint that could answer.
ENDPOINT_SECONDS: Final = 0.5
#: Bytes that wait for one receiver until then.
HELD_BYTES: Final = 4 * 1024 * 1024
#: Topics that one receiver is asked about.
TOPICS_ASKED: Final = 1024

#: Topics of pings. Their content is a number and a node, or a topic; answers add age and clock.
REACH_AGE: Final = f"{RESERVED}/age/reach"
SUBSCRIPTION_AGE: Final = f"{RESERVED}/age/subscription"

_topic_of: Final = itemgetter(0)
_NEVER: Final = float("inf")
#: When a run was published; its topic, or None for several; a packed run, or several, or
#: messages of that topic, or topics and messages; number of messages; bytes; TTL.
_Kept = tuple[float, str | None, Any, int, int, int]


class Question(NamedTuple):
    """A question to a node about what it has in reach, and what it is subscribed to.

    Attributes:
        node: who is asked.
        pairs: topics and contents of the ping.
    """

    node: bytes
    pairs: list[tuple[str, tuple[Any, ...]]]


@dataclass(eq=False, slots=True)
class Pending:
    """A receiver whose values wait until it is known which of the late ones it gets.

    Attributes:
        node: the receiver's node.
        path: the nodes on the way from the source to it, both included.
        end: number of the first run that was published when its filter was known.
        began_at: when its filter arrived.
        pairs: since when two nodes of the path are in reach of each other, and who they are.
        topics: since when the receiver wants each topic.
        silent: nodes that have not answered.
        asked: nodes that were asked.
        held: what was published since its filter is known.
        size: bytes of that.
    """

    node: bytes
    path: Sequence[bytes]
    end: int
    began_at: float
    pairs: list[tuple[float, bytes, bytes]]
    topics: dict[str, float]
    silent: set[bytes]
    asked: set[bytes] = field(default_factory=set)
    held: list[TransmitRun] = field(default_factory=list)
    size: int = 0

    def is_answered(self, now: float) -> bool:
        """Return whether nothing more will be heard."""
        waited = now - self.began_at
        nobody_else = waited >= ENDPOINT_SECONDS and self.silent.isdisjoint(self.asked)
        return not self.silent or nobody_else or waited >= ANSWER_SECONDS

    def in_reach_since(self) -> float:
        """Return since when there has been a way from the source to the receiver.

        Pairs are taken in the order of their times, until they join the ends of the path.
        """
        groups = {node: {node} for node in self.path}
        for time, one, other in sorted(self.pairs):
            joined = groups[one] | groups[other]
            groups.update(dict.fromkeys(joined, joined))
            if self.node in groups[self.path[0]]:
                return time
        return _NEVER


class CatchUp:
    """What one endpoint published of late, and the receivers that may still want it."""

    def __init__(self) -> None:
        self._recent: deque[_Kept] = deque()
        #: Number of the first run that is kept; runs are numbered in their order.
        self._first = 0
        self._messages = self._bytes = 0
        #: Receivers whose values wait, by node.
        self.pending: dict[bytes, Pending] = {}
        #: Who was asked when, for which receiver, by the number of the question.
        self._questions: dict[int, tuple[bytes, float, Pending]] = {}
        self._question = 0
        #: Nodes that got all that they are to get of the runs before a number.
        self._served: dict[bytes, int] = {}

    # --- what was published ---

    @property
    def next_number(self) -> int:
        """The number of the next run that is published."""
        return self._first + len(self._recent)

    def keep(
        self,
        now: float,
        topic: str | None,
        content: bytes | Sequence[Any],
        count: int,
        size: int,
        ttl: int,
    ) -> None:
        """Keep a run that is published: the hot path."""
        self._recent.append((now, topic, content, count, size, ttl))
        self._messages += count
        self._bytes += size
        if self._messages > KEEP_MESSAGES or self._bytes > KEEP_BYTES:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        """Drop an eighth of what may be kept: not for each message again."""
        messages, size = KEEP_MESSAGES * 7 // 8, KEEP_BYTES * 7 // 8
        while self._recent and (self._messages > messages or self._bytes > size):
            self._drop_first()

    def _drop_first(self) -> None:
        """Drop the oldest run."""
        _, _, _, count, size, _ = self._recent.popleft()
        self._first += 1
        self._messages -= count
        self._bytes -= size

    def clear(self) -> None:
        """Drop all runs: no other node is in reach."""
        self._first = self.next_number
        self._recent.clear()
        self._messages = self._bytes = 0

    def _runs_between(self, begin: int, end: int) -> Iterator[_Kept]:
        """Yield runs by their numbers, as far as they are kept."""
        return islice(self._recent, max(0, begin - self._first), max(0, end - self._first))

    # --- receivers ---

    def served(self, node: bytes) -> None:
        """Take note that a node got what it is to get of all that was published until now."""
        self._served[node] = self.next_number

    def forget(self, node: bytes) -> int:
        """Drop a receiver that is out of reach; returns how many messages waited for it."""
        self.served(node)
        pending = self.pending.pop(node, None)
        return 0 if pending is None else sum(run.messages for run in pending.held)

    def begin(
        self,
        node: bytes,
        path: Sequence[bytes],
        reached: Mapping[bytes, float],
        now: float,
        wants: Callable[[str], bool],
    ) -> None:
        """Let values for a receiver wait whose filter has arrived, if it may get late ones.

        Args:
            node: the receiver's node.
            path: the nodes on the way, from the source to the receiver, both included.
            reached: since when nodes are in reach of the source.
            now: the time.
            wants: returns whether the receiver wants a topic.
        """
        since, end = self._served.get(node, 0), self.next_number
        wanted: dict[str, bool] = {}
        for _, topic, content, _, _, _ in self._runs_between(since, end):
            topics_of = (topic,) if topic is not None else map(_topic_of, content)
            for each in topics_of:  # in their order, so that a seed gives the same run
                if each not in wanted:
                    wanted[each] = wants(each)
        topics = [topic for topic, is_wanted in wanted.items() if is_wanted][:TOPICS_ASKED]
        if topics:
            source, *others = path
            pairs = [(reached[other], source, other) for other in others if other in reached]
            self.pending[node] = Pending(
                *(node, path, end, now, pairs, dict.fromkeys(topics, _NEVER), {*others})
            )

    def questions_to(self, node: bytes, now: float) -> list[Question]:
        """Return what a node is to be asked, for all receivers whose values wait."""
        questions: list[Question] = []
        for pending in self.pending.values():
            if node not in pending.silent or node in pending.asked:
                continue
            self._question = number = self._question + 1
            pairs: list[tuple[str, tuple[Any, ...]]] = [
                (REACH_AGE, (number, other)) for other in pending.path if other != node
            ]
            if node == pending.node:
                pairs += [(SUBSCRIPTION_AGE, (number, topic)) for topic in pending.topics]
            self._questions[number] = node, now, pending
            pending.asked.add(node)
            questions.append(Question(node, pairs))
        return questions

    def take_answers(self, node: bytes, items: list[Item], now: float) -> list[Pending]:
        """Take what a node answered; returns the receivers of which all is known now."""
        changed: dict[bytes, Pending] = {}
        for topic, content in items:
            match content:
                case (int() as number, (bytes() | str()) as subject, *answer) if topic in (
                    REACH_AGE,
                    SUBSCRIPTION_AGE,
                ):
                    question = self._questions.get(number)
                case _:
                    continue
            if question is None or question[0] != node:
                continue
            _, at, pending = question
            if pending is not self.pending.get(pending.node):
                continue
            changed[pending.node] = pending
            pending.silent.discard(node)
            time = _time_of(answer, at, now)
            if time is None:
                continue
            if isinstance(subject, str):
                if subject in pending.topics:
                    pending.topics[subject] = time
            elif subject in pending.path:
                pending.pairs.append((time, node, subject))
        return [pending for pending in changed.values() if pending.is_answered(now)]

    def tick(self, now: float) -> list[Pending]:
        """Return the receivers that wait long enough; forget what is too old."""
        while self._recent and now - self._recent[0][0] > KEEP_SECONDS:
            self._drop_first()
        self._served = {node: end for node, end in self._served.items() if end > self._first}
        self._questions = {
            number: question
            for number, question in self._questions.items()
            if question[2] is self.pending.get(question[2].node)
        }
        return [pending for pending in self.pending.values() if pending.is_answered(now)]

    def hold(self, runs: list[TransmitRun]) -> tuple[list[TransmitRun], list[Pending]]:
        """Let data for receivers wait; returns what goes, and for whom too much waits."""
        going: list[TransmitRun] = []
        full: list[Pending] = []
        for run in runs:
            pending = self.pending.get(run.node)
            if pending is None:
                going.append(run)
                continue
            pending.held.append(run)
            pending.size += len(run.payload)
            if pending.size > HELD_BYTES and pending not in full:
                full.append(pending)
        return going, full

    def settle(
        self, pending: Pending, hops: int, wants: Callable[[str], bool]
    ) -> list[TransmitRun]:
        """End the waiting of a receiver; returns what it gets late, and what waited.

        Args:
            pending: the receiver.
            hops: links to its node now; 0 when there is no path.
            wants: returns whether it wants a topic.
        """
        if self.pending.pop(pending.node, None) is None:
            return []
        begin = self._served.get(pending.node, 0)
        self.served(pending.node)
        since = pending.in_reach_since()
        times = {
            topic: max(time, since) for topic, time in pending.topics.items() if wants(topic)
        }
        runs: list[TransmitRun] = []
        for published, topic, content, count, _, ttl in self._runs_between(begin, pending.end):
            if not 0 < hops <= ttl:
                continue
            packed: Iterable[tuple[bytes, int]]
            if isinstance(content, bytes):
                packed = ((content, count),)
            elif topic is not None:
                packed = content if type(content[0]) is tuple else _packed(content, ttl)
            else:
                late = [pair for each, pair in content if published >= times.get(each, _NEVER)]
                packed = _packed(late, ttl)
            if topic is not None and published < times.get(topic, _NEVER):
                continue
            runs += [TransmitRun(pending.node, *one) for one in packed]
        return runs + pending.held


def _packed(pairs: Sequence[bytes], ttl: int) -> Iterable[tuple[bytes, int]]:
    """Return encoded messages as packed runs."""
    return pack_runs(PackedType.DATA, ttl, [*pairs]) if pairs else ()


def _time_of(answer: Sequence[Any], asked_at: float, now: float) -> float | None:
    """Return when something happened, by our clock; None where a node does not know.

    It happened no earlier. A clock that stands between question and answer is ours, so the
    time is exact; the others' may be earlier by as long as the question was under way.
    """
    match answer:
        case (float() as age, float() as clock) if 0.0 <= age < _NEVER:
            return (clock if asked_at <= clock <= now else asked_at) - age
    return None
