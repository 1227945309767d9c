"""Catch-up: values for receivers that were in reach, but not yet known here, when published.

News of an endpoint travel from node to node, and its filter follows. A value that is published
in the meantime has no receiver there yet. So a core keeps what it published of late, and sends
it to an endpoint as soon as the filter of that endpoint arrives. The source alone sends, so
each value arrives once, whatever the nodes between know, and old nodes take part unchanged.

Only values count that were published after the receiver subscribed, and after each link on the
way was established. The source asks the nodes on the way, and the receiver, how long ago that
was: with a ping, which nodes of older releases echo. Until they answer, values for the receiver
wait, so that it gets all of them in order.

An answer has an age. The event happened at most so long before the question was sent, which is
exact up to the time that a message is under way. An answer has the reading of the clock too:
one that lies between question and answer comes from the same clock, and makes the age exact.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import field
from itertools import islice, pairwise
from operator import itemgetter
from typing import Any, Final, NamedTuple

from callboard.dataclass import dataclass
from callboard.endpoint.machine.effect import Item, TransmitRun
from callboard.endpoint.machine.run import PackedType, pack_runs
from callboard.endpoint.machine.topic import RESERVED

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
LINK_AGE: Final = f"{RESERVED}/age/link"
SUBSCRIPTION_AGE: Final = f"{RESERVED}/age/subscription"

_topic_of: Final = itemgetter(0)
_NEVER: Final = float("inf")
_UNKNOWN: Final = -_NEVER

#: The two ends of a link.
_Link = frozenset[bytes]

#: When a run was published; its topic, or None for several; packed runs, or messages of that
#: topic, or topics and messages; number of messages; bytes; TTL.
_Kept = tuple[float, str | None, Sequence[Any], int, int, int]


class Question(NamedTuple):
    """A question to a node about the links and subscriptions that it has.

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
        begin: number of the first run that it may get late.
        end: number of the first run that was published when its filter was known.
        found: number of the first run that was published when its endpoint was known.
        began_at: when its filter arrived.
        links: when each link beyond the first was established, as far as that is known.
        topics: since when the receiver wants each topic; None until it answers.
        silent: nodes that do not know when a link of theirs was established, with the link.
        asked: nodes that were asked.
        held: what was published since its filter is known.
        size: bytes of that.
    """

    node: bytes
    begin: int
    end: int
    found: int
    began_at: float
    links: dict[_Link, float]
    topics: dict[str, float | None]
    silent: set[tuple[bytes, _Link]] = field(default_factory=set)
    asked: set[bytes] = field(default_factory=set)
    held: list[TransmitRun] = field(default_factory=list)
    size: int = 0

    def is_answered(self, now: float) -> bool:
        """Return whether nothing more will be heard."""
        waited = now - self.began_at
        if waited >= ANSWER_SECONDS:
            return True
        if None in self.topics.values():
            return False
        nodes_are_known = waited >= ENDPOINT_SECONDS
        return all(time == _NEVER for time in self.topics.values()) or all(
            time != _UNKNOWN
            or all(
                (end, link) in self.silent or (nodes_are_known and end not in self.asked)
                for end in link
            )
            for link, time in self.links.items()
        )


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
        content: Sequence[Any],
        count: int,
        size: int,
        ttl: int,
    ) -> None:
        """Keep a run that is published: the hot path."""
        recent = self._recent
        recent.append((now, topic, content, count, size, ttl))
        self._messages += count
        self._bytes += size
        if (
            self._messages > KEEP_MESSAGES
            or self._bytes > KEEP_BYTES
            or now - recent[0][0] > KEEP_SECONDS
        ):
            self._prune(now)

    def _prune(self, now: float) -> None:
        """Drop runs that are too old, or too many."""
        recent = self._recent
        while recent and (
            self._messages > KEEP_MESSAGES
            or self._bytes > KEEP_BYTES
            or now - recent[0][0] > KEEP_SECONDS
        ):
            _, _, _, count, size, _ = recent.popleft()
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
        since: int,
        found: int,
        now: float,
        wants: Callable[[str], bool],
    ) -> bool:
        """Begin with a receiver whose filter has arrived; False when there is nothing for it.

        Args:
            node: the receiver's node.
            path: the nodes on the way to it, itself last.
            since: number of the first run that was published after the first link of the way
                was established.
            found: number of the first run that was published when the endpoint was known.
            now: the time.
            wants: returns whether the receiver wants a topic.
        """
        since, end = max(since, self._served.get(node, 0)), self.next_number
        wanted: dict[str, bool] = {}
        for _, topic, content, _, _, _ in self._runs_between(since, end):
            for each in (topic,) if topic is not None else {*map(_topic_of, content)}:
                if each not in wanted:
                    wanted[each] = wants(each)
        topics = [topic for topic, is_wanted in wanted.items() if is_wanted][:TOPICS_ASKED]
        if topics:
            links = {frozenset(ends): _UNKNOWN for ends in pairwise(path)}
            asked_about: dict[str, float | None] = dict.fromkeys(topics)
            self.pending[node] = Pending(node, since, end, found, now, links, asked_about)
        return bool(topics)

    def questions_to(self, node: bytes, now: float) -> list[Question]:
        """Return what a node is to be asked, for all receivers whose values wait."""
        questions: list[Question] = []
        for pending in self.pending.values():
            if node in pending.asked:
                continue
            number = self._question + 1
            pairs: list[tuple[str, tuple[Any, ...]]] = [
                (LINK_AGE, (number, other))
                for link in pending.links
                if node in link
                for other in link - {node}
            ]
            if node == pending.node:
                pairs += [(SUBSCRIPTION_AGE, (number, topic)) for topic in pending.topics]
            if pairs:
                self._question = number
                self._questions[number] = node, now, pending
                pending.asked.add(node)
                questions.append(Question(node, pairs))
        return questions

    def take_answers(self, node: bytes, items: list[Item], now: float) -> list[Pending]:
        """Take what a node answered; returns the receivers of which all is known now."""
        changed: dict[bytes, Pending] = {}
        for topic, content in items:
            match content:
                case (int() as number, (bytes() | str()) as subject, *answer) if (
                    topic in (LINK_AGE, SUBSCRIPTION_AGE)
                ):
                    asked, at, pending = self._questions.get(number, (b"", 0.0, None))
                case _:
                    continue
            if pending is None or asked != node or pending is not self.pending.get(pending.node):
                continue
            time = _time_of(answer, at, now)
            if topic == SUBSCRIPTION_AGE and subject in pending.topics:
                pending.topics[subject] = _NEVER if time is None else time
            elif topic == LINK_AGE and (link := frozenset((node, subject))) in pending.links:
                if time is None:
                    pending.silent.add((node, link))
                else:
                    pending.links[link] = max(time, pending.links[link])
            changed[pending.node] = pending
        return [pending for pending in changed.values() if pending.is_answered(now)]

    def tick(self, now: float) -> list[Pending]:
        """Return the receivers that wait long enough; forget what is too old."""
        self._prune(now)
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
        self.served(pending.node)
        begin, established = pending.begin, max(pending.links.values(), default=_UNKNOWN)
        if _UNKNOWN in pending.links.values():
            begin = max(begin, pending.found)
        times = {
            topic: max(_NEVER if time is None else time, established)
            for topic, time in pending.topics.items()
            if wants(topic)
        }
        runs: list[TransmitRun] = []
        for published, topic, content, _, _, ttl in self._runs_between(begin, pending.end):
            if not 0 < hops <= ttl:
                continue
            if topic is None:
                pairs = [pair for each, pair in content if published >= times.get(each, _NEVER)]
                packed: Iterable[tuple[bytes, int]] = _packed(pairs, ttl)
            elif published >= times.get(topic, _NEVER):
                packed = _packed(content, ttl) if type(content[0]) is bytes else content
            else:
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
