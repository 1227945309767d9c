"""Which seeds have passed: ranges that never overlap, so no life is counted twice."""

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

    @classmethod
    def read(cls, path: Path) -> "Record":
        """Read the record; it is empty where there is none."""
        if not path.exists():
            return cls(path)
        known = json.loads(path.read_text())
        ranges = [(begin, end) for begin, end in known["ranges"]]
        return cls(path, ranges, known.get("hours", 0.0))

    @property
    def seeds(self) -> int:
        """How many seeds have passed."""
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
        content = {"ranges": merged, "seeds": self.seeds, "hours": round(self.hours, 2)}
        self.path.write_text(json.dumps(content, indent=2) + "\n")
