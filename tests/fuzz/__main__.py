"""Fuzz what reads bytes of a peer: `python -m tests.fuzz [--frames N] [--seed S] [target…]`.

Each seed makes one case of some frames. A case that fails is printed with the command that
replays it, and kept in `tests/fuzz/regressions/`. With `--record` the seeds and counts are
added to `docs/reliability/fuzz.json`, and the next run continues after them.
"""

import argparse
import json
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from tests.fuzz.case import Target
from tests.fuzz.targets import TARGETS, keep, replay, run_case

RECORD = Path(__file__).parents[2] / "docs" / "reliability" / "fuzz.json"
#: Findings after which a target stops: they are most likely the same.
_MOST_FAILURES = 5


def main() -> int:
    """Run the targets; 1 when something was found."""
    options = _parse()
    if options.replay:
        replay(options.replay)
        print("passed")
        return 0
    known = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    names = options.targets or list(TARGETS)
    share = len(names)
    failed = 0
    for name in names:
        first = (
            known.get(name, {}).get("next_seed", 0) if options.seed is None else options.seed
        )
        done = run(TARGETS[name], first, options.frames // share, options.seconds / share)
        failed += done["findings"]
        rate = done["frames"] / max(done["seconds"], 1e-9)
        print(
            f"{name:10} seeds {first}-{done['next_seed'] - 1}: {done['frames']:,} frames, "
            f"{done['findings']} findings, {rate:,.0f} frames/s"
        )
        if options.record:
            add(known, name, first, done)
    if options.record:
        RECORD.parent.mkdir(exist_ok=True)
        RECORD.write_text(json.dumps(known, indent=2) + "\n")
    return int(bool(failed))


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="target", help=", ".join(TARGETS))
    parser.add_argument("--frames", type=int, default=100_000, help="frames in all")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="time in all")
    parser.add_argument("--seed", type=int, help="first seed; default: after the recorded ones")
    parser.add_argument("--record", action="store_true", help="add to docs/reliability")
    parser.add_argument("--replay", type=Path, help="a file of tests/fuzz/regressions")
    options = parser.parse_args()
    for name in options.targets:
        if name not in TARGETS:
            parser.error(f"target {name!r} is not one of {', '.join(TARGETS)}")
    return options


def run(target: Target, first: int, frames: int, seconds: float) -> dict[str, Any]:
    """Run cases from seed `first` until the frames are reached or the time is over."""
    started, seed, read, findings = time.monotonic(), first, 0, 0
    while read < frames and time.monotonic() - started < seconds:
        case = target.make(seed)
        try:
            read += run_case(target, case)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            findings += 1
            path = keep(target, seed, case, error)
            print("".join(traceback.format_exception(error)[-6:]))
            print(f"{target.name} seed {seed}: {type(error).__name__}; kept in {path}")
            print(f"replay: python -m tests.fuzz --frames 1 --seed {seed} {target.name}")
            if findings >= _MOST_FAILURES:
                break
        seed += 1
    spent = time.monotonic() - started
    return {"next_seed": seed, "frames": read, "findings": findings, "seconds": spent}


def add(known: dict[str, Any], name: str, first: int, done: dict[str, Any]) -> None:
    """Add a run to the record."""
    entry = known.setdefault(name, {"next_seed": 0, "frames": 0, "cases": 0, "findings": 0})
    entry["next_seed"] = max(entry["next_seed"], done["next_seed"])
    entry["frames"] += done["frames"]
    entry["cases"] += done["next_seed"] - first
    entry["findings"] += done["findings"]
    known["frames"] = sum(known[target]["frames"] for target in TARGETS if target in known)


if __name__ == "__main__":
    sys.exit(main())
