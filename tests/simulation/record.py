"""The seeds that have passed: ranges that never overlap, so no life is counted twice."""

import json
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Record:
    """The published record of lives that broke no rule."""

    path: Path
    ranges: list[tuple[int, int]] = field(default_factory=list)
    #: Virtual hours of these lives together.
    hours: float = 0.0
    #: Version of the meaning of seeds, which rises when the same seeds give other lives.
    meaning: int = 1
    #: Seeds and hours of lives that passed when seeds meant something else.
    earlier: dict[str, float] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path, meaning: int = 1) -> "Record":
        """Read the record; it is empty where there is none.

        If seeds had another meaning, a new record starts: the former total is `earlier`.
        """
        if not path.exists():
            return cls(path, meaning=meaning)
        known = json.loads(path.read_text())
        hours, earlier = known.get("hours", 0.0), known.get("earlier", {})
        if known.get("meaning", 1) == meaning:
            ranges = [(begin, end) for begin, end in known["ranges"]]
            return cls(path, ranges, hours, meaning, earlier)
        earlier = {
            "seeds": earlier.get("seeds", 0) + known["seeds"],
            "hours": round(earlier.get("hours", 0.0) + hours, 2),
        }
        return cls(path, meaning=meaning, earlier=earlier)

    @property
    def seeds(self) -> int:
        """The number of seeds that have passed."""
        return sum(end - begin for begin, end in self.ranges)

    def missing(self, begin: int, end: int) -> list[tuple[int, int]]:
        """Return the parts of a range that are not in the record."""
        found = []
        for start, stop in sorted(self.ranges):
            if start > begin:
                found.append((begin, min(start, end)))
            begin = max(begin, stop)
            if begin >= end:
                break
        if begin < end:
            found.append((begin, end))
        return [(one, other) for one, other in found if one < other]

    def add(self, begin: int, end: int, hours: float) -> None:
        """Add a range that passed, and write the record."""
        merged: list[tuple[int, int]] = []
        for start, stop in sorted([*self.ranges, (begin, end)]):
            if merged and start <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
            else:
                merged.append((start, stop))
        self.ranges = merged
        self.hours += hours
        self.path.parent.mkdir(parents=True, exist_ok=True)
        content = {
            "ranges": merged,
            "seeds": self.seeds,
            "hours": round(self.hours, 2),
            **({"meaning": self.meaning} if self.meaning > 1 else {}),
            **({"earlier": self.earlier} if self.earlier else {}),
        }
        self.path.write_text(json.dumps(content, indent=2) + "\n")
