"""`callboard replay`: run a failed simulation again and compare its events."""

import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path

from callboard.cli.options import JsonOptions
from callboard.cli.problem import FAILED, Misuse, Problem
from callboard.simulation.trace import FOLDER, Dump, UnreadableDump, dump_path

_PASSED, _TESTS_FAILED = 0, 1  # exit codes of pytest; all others mean that no test ran


def replay_seed(seed: int, options: JsonOptions) -> int:
    """Run the test of a seed again; returns the exit code.

    Raises:
        Problem: nothing is known of the seed, or its test cannot be run.
    """
    root, before = _find(seed)
    if importlib.util.find_spec("pytest") is None:
        raise Problem(why="pytest is not installed here", step="pip install pytest")
    with tempfile.TemporaryDirectory() as folder:
        events = Path(folder) / "events.json"
        code = _run(root, before, events, quiet=options.as_json)
        if code not in (_PASSED, _TESTS_FAILED) or not events.exists():
            why = f"pytest ran no simulation in {before.test} (its exit code is {code})"
            step = f"see its output; if the test is gone, remove {dump_path(root, seed)}"
            raise Problem(why=why, step=step)
        after = Dump.read(events)
    difference = before.difference(after)
    outcome = {
        "seed": seed,
        "test": before.test,
        "passed": code == _PASSED,
        "same_events": not difference,
        "events": len(after.events),
        "difference": difference,
    }
    options.say(outcome, f"seed {seed}: {before.compare(after)}")
    return 0 if code == _PASSED else FAILED


def _find(seed: int) -> tuple[Path, Dump]:
    """Return the root folder of the tests and what a failed one left there."""
    here = Path.cwd()
    for root in (here, *here.parents):
        path = dump_path(root, seed)
        if path.exists():
            try:
                return root, Dump.read(path)
            except UnreadableDump as error:
                raise Problem(why=str(error), step="run the failing test again") from None
    why = f"no {FOLDER / f'{seed}.json'} here or in a folder above"
    raise Misuse(why=why, step="run the failing test again, it leaves one")


def _run(root: Path, dump: Dump, events: Path, *, quiet: bool) -> int:
    command = [
        *(sys.executable, "-m", "pytest", "--rootdir", str(root)),
        *(f"--callboard-seed={dump.seed}", f"--callboard-events={events}", dump.test),
    ]
    sys.stdout.flush()
    output = sys.stderr if quiet else None
    return subprocess.run(command, cwd=root, stdout=output, check=False).returncode  # noqa: S603
