"""What the parent knows of the analysis while it runs. Pure."""

from dataclasses import dataclass, field
from typing import Any, Final

KINDS: Final = ("/rates", "/quantiles", "/anomalies")
"""How the topics of results begin."""


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
        return ", ".join(
            f"{count:,} {topic.strip('/')}" for topic, count in self.messages.items()
        )
