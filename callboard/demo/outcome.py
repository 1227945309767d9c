"""The outcome of a run: the balance of messages, of writes to the store, of Spark's results.

Each node keeps an account for each other node, with sent = confirmed + lost + in flight at all
times. The balance is the sum of the accounts of all nodes that are alive at the end. Messages
sent by a killed node are not in the sum, because its counters are gone. Messages sent *to* it
are; those without a confirmation count as lost. After the sensors have stopped and all delivery
reports have arrived, nothing is in flight, and the balance is exact.

Each process with sensors counts its readings in the store. All writes that a clone reports as
acknowledged must be in the master's counters, even if the master's node was killed and has
restarted from its file.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Self


@dataclass(frozen=True, slots=True)
class Balance:
    """Sums of accounts, in messages between nodes (answers included)."""

    sent: int = 0
    delivered: int = 0
    lost: int = 0
    in_flight: int = 0

    @classmethod
    def of(cls, accounts: Sequence[Mapping[str, int]]) -> Self:
        """Sum up `accounts()` of nodes."""
        names = ("sent", "confirmed", "lost", "in_flight")
        return cls(*(sum(account[name] for account in accounts) for name in names))

    @property
    def is_exact(self) -> bool:
        """Whether every message is accounted for and none is in flight."""
        return self.in_flight == self.unexplained == 0

    @property
    def unexplained(self) -> int:
        """The number of sent messages that are not delivered, lost or in flight."""
        return self.sent - self.delivered - self.lost - self.in_flight


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """The results of one run; times are from the kill, None without one.

    Attributes:
        down_ms: until the overseer on A handled the first `Down` of a sensor on D, three hops
            away (D is alive, but the only path led over C).
        service_ms: until the next aggregator handled its first reading.
        peaks_ms: until all daily peaks of that node, which are entities, answered again.
        peaks: the number of these entities.
        store: summary of the writes to the store; empty without any.
        problem: a failure other than an inexact balance; empty without one.
    """

    balance: Balance
    down_ms: float | None = None
    service_ms: float | None = None
    store: str = ""
    problem: str = ""
    peaks_ms: float | None = None
    peaks: int = 0

    @property
    def exit_code(self) -> int:
        """0 if the balance is exact and there is no problem, else 1."""
        return 0 if self.balance.is_exact and not self.problem else 1

    def line(self) -> str:
        """Return the last line of the demo."""
        balance = self.balance
        sums = f"sent {balance.sent:,} {'=' if balance.is_exact else '≠'} delivered"
        text = f"balance: {sums} {balance.delivered:,} + reported lost {balance.lost:,}"
        if balance.in_flight:
            text += f" + still in flight {balance.in_flight:,}"
        if balance.unexplained:
            text += f" + unexplained {balance.unexplained:,}"
        if self.down_ms is not None:
            text += f" · down after {self.down_ms:,.0f} ms over 3 hops"
        if self.service_ms is not None:
            text += f" · back in service after {self.service_ms:,.0f} ms"
        if self.peaks and self.peaks_ms is not None:
            text += f" · {self.peaks} entities back after {self.peaks_ms:,.0f} ms"
        if self.store:
            text += f" · {self.store}"
        return f"{text} · failed: {self.problem}" if self.problem else text


class LifeCount(NamedTuple):
    """The readings that one process of a node has written, and the acknowledged ones."""

    node: str
    written: int
    acknowledged: int


@dataclass(slots=True)
class StoreBooks:
    """The master, the processes of the writers, and the contents of a clone.

    Attributes:
        host: the node with the master; empty without a master.
        shown: keys and values of the clone on the witness's node.
    """

    host: str = ""
    entries: int = 0
    kept: dict[str, int] = field(default_factory=dict)
    lives: dict[str, LifeCount] = field(default_factory=dict)
    shown: dict[str, float] = field(default_factory=dict)
    parted: set[str] = field(default_factory=set)

    def take(self, node: str, report: dict[str, Any] | None, *, is_witness: bool) -> None:
        """Update from a node's report about its master or clone."""
        if report is None:
            return
        if report["parted"]:
            self.parted.add(node)
        if report["role"] == "master":
            self.host, self.entries, self.kept = node, report["entries"], report["kept"]
            return
        counts = LifeCount(node, report["written"], report["acknowledged"])
        self.lives[report["life"]] = counts
        if is_witness:
            self.shown = report["shown"]

    def ended(self, node: str) -> None:
        """Record that a node was killed or ended."""
        self.host = "" if node == self.host else self.host
        self.parted.discard(node)

    @property
    def acknowledged(self) -> int:
        """The number of acknowledged writes of all processes."""
        return sum(life.acknowledged for life in self.lives.values())

    @property
    def lost(self) -> int:
        """The number of acknowledged writes that the master does not have."""
        return sum(
            max(life.acknowledged - self.kept.get(name, 0), 0)
            for name, life in self.lives.items()
        )

    @property
    def doubled(self) -> int:
        """The number of writes that the master executed twice."""
        return sum(
            max(self.kept.get(name, 0) - life.written, 0) for name, life in self.lives.items()
        )

    def is_settled(self, alive: set[str]) -> bool:
        """Return whether all writes of these nodes are acknowledged, or there is no master."""
        present = [life for life in self.latest_lives() if life.node in alive]
        return not self.host or all(life.acknowledged == life.written for life in present)

    def latest_lives(self) -> list[LifeCount]:
        """Return the last process of each node."""
        return list({life.node: life for life in self.lives.values()}.values())

    def summary(self) -> dict[str, Any]:
        """Return the figures as plain values."""
        names = ("entries", "acknowledged", "lost", "doubled")
        return {**{name: getattr(self, name) for name in names}, "checked": bool(self.host)}

    def status(self) -> str:
        """Return the state of the store in one line."""
        master = f"master on {self.host}" if self.host else "master away, clones keep writes"
        pending = sum(life.written for life in self.lives.values()) - self.acknowledged
        return (
            f"store: {master} · {self.entries} entries · "
            f"{self.acknowledged:,} writes acknowledged, {pending:,} waiting"
        )

    def line(self) -> str:
        """Return a summary of the writes for the last line; empty without any."""
        if not self.acknowledged:
            return ""
        text = f"store: {self.acknowledged:,} writes acknowledged"
        return f"{text}, {self.lost:,} lost" if self.host else f"{text}, its master is away"

    def problem(self) -> str:
        """Return an error text about the store; empty without an error or without a master."""
        if self.host and (self.lost or self.doubled):
            return f"the store lost {self.lost} writes and doubled {self.doubled}"
        return ""


#: Prefixes of the topics of results.
KINDS: Final = ("/rates", "/quantiles", "/anomalies")


@dataclass(slots=True)
class Findings:
    """The state of Spark, and its results.

    Attributes:
        state: state of Spark's process; empty without one.
        messages: number of results that reached D as messages, by the prefix of their topic.
        entries: results in the store, from A's clone; for quantiles the median.
    """

    state: dict[str, Any] = field(default_factory=dict)
    messages: dict[str, int] = field(default_factory=dict)
    entries: dict[str, float | None] = field(default_factory=dict)

    def take(self, report: dict[str, Any], *, is_witness: bool) -> None:
        """Update from a node's report."""
        self.messages = report.get("results") or self.messages
        if is_witness and report["store"] is not None:
            self.entries = report["store"].get("results", self.entries)

    def summary(self) -> dict[str, Any]:
        """Return the numbers of messages, and of entries in the store, by kind."""
        entries = {
            kind: sum(key.startswith(f"{kind}/") for key in self.entries) for kind in KINDS
        }
        return {"messages": self.messages, "entries": entries}

    def status(self) -> str:
        """Return the state of the analysis in one line; empty without an analysis."""
        if not self.state or self.state["state"] != "runs":
            return f"spark: {self.state['state']}" if self.state else ""
        parts = [f"spark: {self.state.get('rows', 0):,} records read"]
        if any(self.messages.values()):
            parts.append(f"{self._counts()} as messages on D")
        if self.entries:
            parts.append(f"{len(self.entries)} entries in the store")
        median = self.entries.get("/quantiles/flights/JFK")
        if median is not None:
            parts.append(f"median delay at JFK {median:.0f} min")
        return " · ".join(parts)

    def line(self) -> str:
        """Return a line about the results for the end; empty without results."""
        if not any(self.messages.values()):
            return ""
        entries = f"{len(self.entries)} are in the store"
        return f"results of Spark: {self._counts()} reached D as messages, {entries}"

    def _counts(self) -> str:
        """Format the numbers of results that arrived as messages."""
        counts = self.messages.items()
        return ", ".join(f"{count:,} {topic.strip('/')}" for topic, count in counts)
