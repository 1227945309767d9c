"""The state of the four nodes, as the parent knows it from their reports.

Pure. One reading per second is traced hop by hop: A reports when it sent the reading and when
the answer arrived, the nodes in between report when it passed, and the aggregator reports when
it was handled. All processes of one machine share the monotonic clock, so these times can be
compared.
"""

import math
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Final, Literal, NamedTuple

from callboard.demo.aggregator import topic_of
from callboard.demo.outcome import Balance, Findings, StoreBooks
from callboard.demo.story import WITNESS, Chronicle, Incident, Tone, describe

#: Maximum forwarded asks without an answer; older ones are dropped.
PASSAGES_KEPT: Final = 512


class Rate:
    """The rate of a counter per second, smoothed over about a second."""

    def __init__(self) -> None:
        self.per_second = 0.0
        self._last: tuple[float, float] | None = None

    def update(self, at: float, count: float) -> float:
        """Update with the counter's value; return the rate. A lower value is a restart."""
        last, self._last = self._last or (at, count), (at, count)
        elapsed, risen = at - last[0], count - last[1]
        if risen < 0:
            self.per_second = 0.0
        elif elapsed > 0.0:
            self.per_second += (1.0 - math.exp(-elapsed)) * (risen / elapsed - self.per_second)
        else:  # the next report of a later moment has the whole rise
            self._last = last
        return self.per_second


class FollowedAsk(NamedTuple):
    """An answered ask, as seen by its sender. Times are in nanoseconds."""

    source: str
    host: str
    message_id: int
    number: int
    sent_ns: int
    handled_ns: int
    answered_ns: int


class Journey(NamedTuple):
    """The route of a reading to the aggregator and back: nodes, and µs since it was sent."""

    number: int
    hops: tuple[tuple[str, float], ...]

    def line(self) -> str:
        """Format the route: `A 0 µs → B 85 µs → C 170 µs → B 260 µs → A 340 µs`."""
        return " → ".join(f"{node} {microseconds:,.0f} µs" for node, microseconds in self.hops)


class SceneFollower:
    """Combines the reports of several nodes about one ask; they may arrive in any order."""

    def __init__(self) -> None:
        # (asker, message id) → the nodes that forwarded the ask and its answer, with times
        self._passages: OrderedDict[tuple[str, int], list[tuple[str, int]]] = OrderedDict()
        self._answered: deque[FollowedAsk] = deque(maxlen=2)

    def passed(self, source: str, message_id: int, node: str, at_ns: int) -> None:
        """Record that a node forwarded an ask of `source`, or its answer."""
        self._passages.setdefault((source, message_id), []).append((node, at_ns))
        while len(self._passages) > PASSAGES_KEPT:
            self._passages.popitem(last=False)

    def answered(self, asked: FollowedAsk) -> None:
        """Record an answered ask."""
        self._answered.append(asked)

    @property
    def last(self) -> Journey | None:
        """The latest journey that seems complete.

        The nodes in between may report later than the asker; until then, the previous journey
        is returned.
        """
        if not self._answered:
            return None
        previous, ask = self._answered[0], self._answered[-1]
        if previous.host == ask.host and self._between(previous) and not self._between(ask):
            ask = previous
        ends = [(ask.source, ask.sent_ns), (ask.source, ask.answered_ns)]
        stations = [*ends, (ask.host, ask.handled_ns), *self._between(ask)]
        stations.sort(key=lambda station: station[1])
        hops = tuple((node, (at_ns - ask.sent_ns) / 1000) for node, at_ns in stations)
        return Journey(ask.number, hops)

    def _between(self, asked: FollowedAsk) -> list[tuple[str, int]]:
        """Return the nodes that forwarded an ask, with the times."""
        return self._passages.get((asked.source, asked.message_id), [])


EVENTS_KEPT: Final = 200

NodeState = Literal["starting", "up", "unreachable", "frozen", "dead"]


class SceneEvent(NamedTuple):
    """One line of the log, at a monotonic time; `since_ms` is the time since the last blow."""

    at_ns: int
    since_ms: float | None
    text: str
    tone: Tone


@dataclass(slots=True)
class NodeView:
    """The state of one node."""

    name: str
    pid: int = 0
    has_reported: bool = False
    is_alive: bool = True
    is_frozen: bool = False
    is_reachable: bool = True
    round: int = 0
    reach: dict[str, int] = field(default_factory=dict)
    links: dict[str, int] = field(default_factory=dict)
    link_rates: dict[str, Rate] = field(default_factory=dict)
    accounts: list[dict[str, int]] = field(default_factory=list)
    peers: int = 0
    published_rate: Rate = field(default_factory=Rate)
    received_rate: Rate = field(default_factory=Rate)

    @property
    def state(self) -> NodeState:
        """The state for the display; the worst one that applies."""
        if not self.is_alive:
            return "dead"
        if self.is_frozen:
            return "frozen"
        if not self.has_reported:
            return "starting"
        return "up" if self.is_reachable else "unreachable"

    def take(self, report: dict[str, Any]) -> None:
        """Update from a report."""
        now = report["at"] / 1e9
        self.has_reported = True
        self.round = report["round"]
        self.reach = {node["name"]: node["hops"] for node in report["nodes"]}
        self.links = {
            link["peer_name"]: link["frames_sent"] + link["frames_received"]
            for link in report["links"]
        }
        for peer, frames in self.links.items():
            self.link_rates.setdefault(peer, Rate()).update(now, frames)
        self.accounts = report["accounts"]
        topics = report["topics"]
        self.peers = topics["peers"]
        self.published_rate.update(now, topics["published"])
        self.received_rate.update(now, topics["received"])


class Scene:
    """The four nodes, the log, the figures of the aggregator, and the traced reading."""

    def __init__(self, names: Iterable[str]) -> None:
        self.nodes = {name: NodeView(name) for name in names}
        self.chronicle = Chronicle()
        self.follower = SceneFollower()
        self.events: deque[SceneEvent] = deque(maxlen=EVENTS_KEPT)
        self.holdings = StoreBooks()
        self.findings = Findings()
        self.host = ""
        self.snapshot: dict[str, Any] = {}
        #: Daily peaks that answered again after the loss of their node, and how many are lower.
        self.peaks: tuple[int, int] = (0, 0)
        #: Figures of the readings by MQTT; None without MQTT.
        self.mqtt: dict[str, Any] | None = None
        self.topic_rates: dict[str, Rate] = {}
        self._ids: dict[str, str] = {}  # node id → name

    # --- actions of the parent ---

    def started(self, name: str, pid: int, at_ns: int, *, again: bool) -> SceneEvent | None:
        """Record the start of a process; return an event for a restart."""
        self.nodes[name] = NodeView(name, pid)
        if not again:
            return None
        incident = self.chronicle.at(at_ns)
        if incident is not None and incident.target == name:
            incident.reach("restarted", at_ns)
        return self._log(at_ns, f"{name} is started again", "plain")

    def struck(self, incident: Incident) -> SceneEvent:
        """Record a blow to a node or link."""
        target = incident.target
        texts = {
            "kill": f"{target} is killed (SIGKILL)",
            "freeze": f"{target} is frozen (SIGSTOP)",
            "thaw": f"{target} goes on (SIGCONT)",
            "cut": f"link {target} is cut",
        }
        if incident.blow in ("kill", "freeze", "thaw"):
            view = self.nodes[target]
            view.is_alive = incident.blow != "kill"
            view.is_frozen = incident.blow == "freeze"
            if not view.is_alive:
                self.holdings.ended(target)
        return self._log(incident.at_ns, texts[incident.blow], "bad")

    def ended(self, name: str, at_ns: int, status: int) -> SceneEvent:
        """Record that a process ended without being killed."""
        self.nodes[name].is_alive = False
        self.holdings.ended(name)
        return self._log(at_ns, f"{name} ended by itself (status {status})", "bad")

    def say(self, text: str, at_ns: int) -> SceneEvent:
        """Record an event outside the nodes."""
        return self._log(at_ns, text, "plain")

    # --- reports of the nodes ---

    def report(self, name: str, report: dict[str, Any]) -> list[SceneEvent]:
        """Update from a node's report; return its events."""
        view = self.nodes[name]
        view.take(report)
        self.holdings.take(name, report["store"], is_witness=name == WITNESS)
        self.findings.take(report, is_witness=name == WITNESS)
        self.mqtt = report["mqtt"] or self.mqtt
        if "ready" in report:
            self._ids[report["ready"]] = name
        if name == WITNESS:
            for node_view in self.nodes.values():
                node_view.is_reachable = (
                    node_view.name == WITNESS or node_view.name in view.reach
                )
        for asker, message_id, at_ns in report["passages"]:
            if asker in self._ids:
                self.follower.passed(self._ids[asker], message_id, name, at_ns)
        events = list(self._take_notes(name, report["notes"]))
        if name == self.host and report["snapshot"] is not None:
            self.snapshot = report["snapshot"]
            for sensor, count in self.snapshot.get("sensors", {}).items():
                rate = self.topic_rates.setdefault(topic_of(sensor), Rate())
                rate.update(report["at"] / 1e9, count["received"])
        return events

    def _take_notes(self, name: str, notes: list[dict[str, Any]]) -> Iterator[SceneEvent]:
        notes = sorted(map(self._with_names, notes), key=lambda note: note["at"])
        for note in notes:
            self.chronicle.note(name, note)
            if note["kind"] == "answered":
                self._take_answer(name, note)
            elif note["kind"] == "peaks_back":
                self.peaks = note["count"], self.peaks[1] + note["lower"]
            elif note["kind"] == "spawned":
                self.host, self.snapshot, self.topic_rates = note["host"], {}, {}
        for description, group in groupby(notes, lambda note: describe(name, note)):
            if description is not None:
                text, tone = description
                same_notes = list(group)
                suffix = f" ({len(same_notes)} actors)" if "sensor" in same_notes[0] else ""
                yield self._log(same_notes[0]["at"], text + suffix, tone)

    def _with_names(self, note: dict[str, Any]) -> dict[str, Any]:
        """Replace node ids by names in the reason of a note."""
        reason = note.get("reason")
        if reason:
            for node_id, name in self._ids.items():
                reason = reason.replace(node_id, name)
            note = {**note, "reason": reason}
        return note

    def _take_answer(self, name: str, note: dict[str, Any]) -> None:
        """Record the answer to the traced reading."""
        names = ("message_id", "number", "sent_ns", "handled_ns", "answered_ns")
        host = self._ids.get(note["host"], "?")
        self.follower.answered(FollowedAsk(name, host, *(note[field] for field in names)))

    def _log(self, at_ns: int, text: str, tone: Tone) -> SceneEvent:
        """Add an event to the log, with its time since the last blow."""
        incident = self.chronicle.at(at_ns)
        since_ms = None if incident is None else (at_ns - incident.at_ns) / 1e6
        event = SceneEvent(at_ns, since_ms, text, tone)
        self.events.append(event)
        return event

    # --- queries ---

    def stands(self) -> bool:
        """Return whether readings of both ends of the line have reached the aggregator."""
        origins = {sensor.partition(".")[0] for sensor in self.snapshot.get("sensors", {})}
        return {"A", "D"} <= origins

    def balance(self) -> Balance:
        """Return the sums of the accounts of all living nodes."""
        alive = [view for view in self.nodes.values() if view.is_alive]
        return Balance.of([account for view in alive for account in view.accounts])

    def topics(self) -> dict[str, int]:
        """Return the number of messages of each topic that reached the current aggregator."""
        counts = self.snapshot.get("sensors", {})
        return {topic_of(sensor): count["received"] for sensor, count in counts.items()}

    def topics_rate(self) -> float:
        """Return the messages per second that reach the aggregator, of all topics."""
        return sum(rate.per_second for rate in self.topic_rates.values())

    def link_is_up(self, left: str, right: str) -> bool:
        """Return whether both ends of a link are running and report the link."""
        ends = [(self.nodes[left], right), (self.nodes[right], left)]
        able = [(view, peer) for view, peer in ends if view.is_alive and not view.is_frozen]
        return len(able) == 2 and all(peer in view.links for view, peer in able)

    def link_rate(self, left: str, right: str) -> float:
        """Return the frames per second in both directions."""
        return self.nodes[left].link_rates.get(right, Rate()).per_second
