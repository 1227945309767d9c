"""What the parent knows of the demo's store: was anything acknowledged lost? Pure.

Each life of a node with sensors counts its readings in the store. What a clone said to be
acknowledged must be in the master's counters, also when the master's node was killed meanwhile
and came back from its file.
"""

from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class LifeCount:
    """The readings that one life of a node has written, and those that the master has."""

    node: str
    written: int = 0
    acknowledged: int = 0


class Holdings:
    """The master, the lives of the writers, and what a clone shows."""

    def __init__(self) -> None:
        #: The node with the master; empty while there is none.
        self.host = ""
        self.entries = 0
        self.kept: dict[str, int] = {}
        self.lives: dict[str, LifeCount] = {}
        #: Keys and values as the clone on the witness's node shows them.
        self.shown: dict[str, float] = {}
        self.parted: set[str] = set()

    def take(self, node: str, report: dict[str, Any] | None, *, is_witness: bool) -> None:
        """Take a node's report about its master or clone in."""
        if report is None:
            return
        if report["parted"]:
            self.parted.add(node)
        if report["role"] == "master":
            self.host, self.entries, self.kept = node, report["entries"], report["kept"]
            return
        life = self.lives.setdefault(report["life"], LifeCount(node))
        life.written, life.acknowledged = report["written"], report["acknowledged"]
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
