"""The books of a run: what became of messages, of writes to the store, of Spark's results.

Each node keeps an account for each other node: sent = confirmed + lost + in flight, at all
times. The balance adds up the accounts of all nodes that are alive at the end. What a killed
node itself had sent died with its counters and is no part of the sum; what was sent *to* it
is, and shows up as lost as far as no node confirmed it. When the sensors rest and all delivery
reports are in, nothing is in flight, and the books close exactly.

Each life of a node with sensors counts its readings in the store. What a clone said to be
acknowledged must be in the master's counters, also when the master's node was killed meanwhile
and came back from its file.
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
        """Add up what nodes tell of their `accounts()`."""
        names = ("sent", "confirmed", "lost", "in_flight")
        return cls(*(sum(account[name] for account in accounts) for name in names))

    @property
    def is_exact(self) -> bool:
        """True when every message is accounted for and none is under way."""
        return self.in_flight == 0 and self.sent == self.delivered + self.lost

    @property
    def unexplained(self) -> int:
        """Messages that were sent and are neither delivered, nor lost, nor under way."""
        return self.sent - self.delivered - self.lost - self.in_flight


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """What one run showed.

    Attributes:
        balance: the sums of the accounts of all nodes that were alive at the end.
        down_ms: from the kill to the moment when the overseer on A handled the first `Down` of
        a
            sensor on D, three hops away: D lives, but only C led to it. None if nothing was
            killed.
        store: what became of the writes to the store, in words; empty without any.
        service_ms: from the kill to the first reading that the next aggregator handled.
        peaks_ms: from the kill until the daily peaks that lived on that node, which are
            entities, had all answered again elsewhere.
        peaks: how many that were.
        problem: why the run failed for another reason than the balance; empty if it did not.
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
        """0 when the books close exactly, else 1."""
        return 0 if self.balance.is_exact and not self.problem else 1

    def line(self) -> str:
        """Return the last line of the demo."""
        balance = self.balance
        sign = "=" if balance.is_exact else "≠"
        text = (
            f"balance: sent {balance.sent:,} {sign} delivered {balance.delivered:,} "
            f"+ reported lost {balance.lost:,}"
        )
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
    """The readings that one life of a node has written, and those that the master has."""

    node: str
    written: int
    acknowledged: int


@dataclass(slots=True)
class StoreBooks:
    """The master, the lives of the writers, and what a clone shows.

    Attributes:
        host: The node with the master; empty while there is none.
        shown: Keys and values as the clone on the witness's node shows them.
    """

    host: str = ""
    entries: int = 0
    kept: dict[str, int] = field(default_factory=dict)
    lives: dict[str, LifeCount] = field(default_factory=dict)
    shown: dict[str, float] = field(default_factory=dict)
    parted: set[str] = field(default_factory=set)

    def take(self, node: str, report: dict[str, Any] | None, *, is_witness: bool) -> None:
        """Take a node's report about its master or clone in."""
        if report is None:
            return
        if report["parted"]:
            self.parted.add(node)
        if report["role"] == "master":
            self.host, self.entries, self.kept = node, report["entries"], report["kept"]
            return
        life = LifeCount(node, report["written"], report["acknowledged"])
        self.lives[report["life"]] = life
        if is_witness:
            self.shown = report["shown"]

    def ended(self, node: str) -> None:
        """Note that a node was killed or ended."""
        if node == self.host:
            self.host = ""
        self.parted.discard(node)

    @property
    def acknowledged(self) -> int:
        """Writes that were acknowledged, of all lives."""
        return sum(life.acknowledged for life in self.lives.values())

    @property
    def lost(self) -> int:
        """Writes that were acknowledged, and that the master does not have."""
        return sum(
            max(life.acknowledged - self.kept.get(name, 0), 0)
            for name, life in self.lives.items()
        )

    @property
    def doubled(self) -> int:
        """Writes that the master carried out once too often."""
        return sum(
            max(self.kept.get(name, 0) - life.written, 0) for name, life in self.lives.items()
        )

    def is_settled(self, alive: set[str]) -> bool:
        """Return whether all that was written on these nodes is acknowledged, or cannot be."""
        return not self.host or all(
            life.acknowledged == life.written
            for life in self.latest_lives()
            if life.node in alive
        )

    def latest_lives(self) -> list[LifeCount]:
        """Return the last life of each node."""
        return list({life.node: life for life in self.lives.values()}.values())

    def latest_and_peak(self, sensor: str) -> tuple[float, float] | None:
        """Return the latest level of a sensor and its peak, as the clone shows them."""
        latest = self.shown.get(f"{sensor} latest")
        peak = self.shown.get(f"{sensor} peak")
        return None if latest is None or peak is None else (latest, peak)

    def summary(self) -> dict[str, Any]:
        """Return the figures as plain values."""
        return {
            "entries": self.entries,
            "acknowledged": self.acknowledged,
            "lost": self.lost,
            "doubled": self.doubled,
            "checked": bool(self.host),
        }

    def status(self) -> str:
        """Return the state of the store in one line."""
        where = f"master on {self.host}" if self.host else "master away, clones keep writes"
        waiting = sum(life.written for life in self.lives.values()) - self.acknowledged
        return (
            f"store: {where} · {self.entries} entries · "
            f"{self.acknowledged:,} writes acknowledged, {waiting:,} waiting"
        )

    def line(self) -> str:
        """Return what became of the writes, for the last line; empty without any."""
        if not self.acknowledged:
            return ""
        text = f"store: {self.acknowledged:,} writes acknowledged"
        return f"{text}, {self.lost:,} lost" if self.host else f"{text}, its master is away"

    def problem(self) -> str:
        """Return what is wrong with the store; empty when nothing is, or nobody can tell."""
        if self.host and (self.lost or self.doubled):
            return f"the store lost {self.lost} writes and doubled {self.doubled}"
        return ""


#: How the topics of results begin.
KINDS: Final = ("/rates", "/quantiles", "/anomalies")


@dataclass(slots=True)
class Findings:
    """How far Spark is, and what came back from it.

    Attributes:
        state: What Spark's process tells; empty where there is none.
        messages: Results that reached D as messages, by the beginning of their topic.
        entries: Results in the store as A's clone shows them: for quantiles the median.
    """

    state: dict[str, Any] = field(default_factory=dict)
    messages: dict[str, int] = field(default_factory=dict)
    entries: dict[str, float | None] = field(default_factory=dict)

    def take(self, report: dict[str, Any], *, is_witness: bool) -> None:
        """Take a node's report in."""
        if report.get("results"):
            self.messages = report["results"]
        store = report["store"]
        if is_witness and store is not None:
            self.entries = store.get("results", self.entries)

    def missing(self) -> list[str]:
        """Return the kinds that did not come back, as a message and as an entry."""
        kept = self._entries_of_kinds()
        return [kind for kind in KINDS if not (self.messages.get(kind) and kept[kind])]

    def summary(self) -> dict[str, Any]:
        """Return what came back as plain values."""
        return {"messages": self.messages, "entries": self._entries_of_kinds()}

    def _entries_of_kinds(self) -> dict[str, int]:
        """Return how many entries of each kind the store has."""
        return {kind: sum(key.startswith(f"{kind}/") for key in self.entries) for kind in KINDS}

    def status(self) -> str:
        """Return the state of the analysis in one line; empty where there is none."""
        if not self.state:
            return ""
        if self.state["state"] != "runs":
            return f"spark: {self.state['state']}"
        parts = [f"spark: {self.state.get('rows', 0):,} records read"]
        if any(self.messages.values()):
            parts.append(f"{self._counts()} as messages on D")
        if self.entries:
            parts.append(f"{len(self.entries)} entries in the store")
        median = self.entries.get("/quantiles/metrics/A/cpu")
        if median is not None:
            parts.append(f"cpu median {median:.0f} %")
        return " · ".join(parts)

    def line(self) -> str:
        """Return what came back, in one line for the end; empty where nothing did."""
        if not self.messages:
            return ""
        return (
            f"results of Spark: {self._counts()} came to D as messages,"
            f" {len(self.entries)} are in the store"
        )

    def _counts(self) -> str:
        """Return how many results came as messages, in words."""
        counts = self.messages.items()
        return ", ".join(f"{count:,} {topic.strip('/')}" for topic, count in counts)
