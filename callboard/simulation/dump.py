"""What a failed simulation leaves behind, and how a replay compares with it.

One JSON file for each seed, `.callboard/failures/SEED.json` in the root folder of the tests:
`seed`, `test` (pytest's id of the test that failed) and `events`, one line of text each.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from callboard.simulation.trace import first_difference

FOLDER: Final = Path(".callboard") / "failures"
"""Where dumps are, below the root folder of the tests."""


def dump_path(root: Path, seed: int) -> Path:
    """Return where the dump of a seed is."""
    return root / FOLDER / f"{seed}.json"


class UnreadableDump(ValueError):
    """A file is no dump of a failed simulation."""


@dataclass(frozen=True, slots=True)
class Dump:
    """The seed and the events of a simulation that failed.

    Attributes:
        seed: of the simulation.
        test: which test it was, as pytest names it.
        events: what happened, one line each: seconds, where, what.
    """

    seed: int
    test: str
    events: list[str]

    def write(self, root: Path) -> Path:
        """Write the dump below a folder; returns the file."""
        path = dump_path(root, self.seed)
        self.write_to(path)
        return path

    def write_to(self, path: Path) -> None:
        """Write the dump to a file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=0) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> "Dump":
        """Read a dump.

        Raises:
            UnreadableDump: the file is something else, or damaged.
            FileNotFoundError: there is none.
        """
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            seed, test, events = int(found["seed"]), found["test"], found["events"]
        except (ValueError, KeyError, TypeError) as error:
            msg = f"{path} is no dump of a simulation ({error}); run the failing test again"
            raise UnreadableDump(msg) from None
        if not isinstance(test, str) or not isinstance(events, list):
            msg = f"{path} has no test or no events; run the failing test again"
            raise UnreadableDump(msg)
        return cls(seed, test, [str(event) for event in events])

    def difference(self, after: "Dump") -> str:
        """Say in what another run differs; empty when all events are the same."""
        found = first_difference(self.events, after.events)
        if found is None:
            return ""
        number, was, is_ = found
        return f"event {number + 1:,} differs; it was: {was}; it is: {is_}"

    def compare(self, after: "Dump") -> str:
        """Say whether another run had the same events."""
        same = f"the same {len(self.events):,} events as in the run that failed"
        return self.difference(after) or same
