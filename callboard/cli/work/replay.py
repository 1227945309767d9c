"""`callboard replay`: run a simulation again by its seed, and compare its events."""

import ast
import difflib
import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final, NamedTuple

from callboard.cli.options import JsonOptions
from callboard.cli.output import say
from callboard.cli.problem import FAILED, Misuse, Problem
from callboard.simulation.cluster_test import KEPT
from callboard.simulation.trace import FOLDER, Dump, UnreadableDump, dump_path

_PASSED, _TESTS_FAILED = 0, 1  # exit codes of pytest; all others mean that no test ran

_FORMS: Final = "callboard replay SEED, SEED FILE::TEST, or FILE::TEST"


class _Wanted(NamedTuple):
    """A test to run in a folder: with which seed, and what it did before, as far as known."""

    root: Path
    test: str
    seed: int | None = None
    before: Dump | None = None


def replay(
    what: str, test: str, options: JsonOptions, *, has_trace: bool, is_twice: bool
) -> int:
    """Run the test of a seed again, or a printed program; returns the exit code.

    Args:
        what: a seed, a test or a file.
        test: the test of the seed, where it is named.
        options: how the outcome is printed.
        has_trace: whether all events are printed.
        is_twice: whether it is run twice, and the two are compared.

    Raises:
        Problem: nothing is known of the seed, or its test cannot be run.
    """
    wanted = _wanted(what, test)
    if importlib.util.find_spec("pytest") is None:
        raise Problem(why="pytest is not installed here", step="pip install pytest")
    passed, after = _lived(wanted, quiet=options.as_json)
    named = f"seed {wanted.seed}" if wanted.seed is not None else wanted.test
    events = [] if after is None else after.events
    outcome: dict[str, Any] = {
        "seed": wanted.seed if after is None else after.seed,
        "test": wanted.test,
        "passed": passed,
        "same_events": None,
        "events": len(events),
        "difference": "",
    }
    told = f"{len(events):,} events; it {'passed' if passed else 'failed'}"
    if wanted.before is not None and after is not None:
        outcome["difference"] = wanted.before.difference(after)
        outcome["same_events"] = not outcome["difference"]
        told = wanted.before.compare(after)
    if is_twice:
        again = _lived(wanted, quiet=True)[1]
        if after is None or again is None:
            raise Problem(why=f"{wanted.test} leaves no events", step=f"name a seed: {_FORMS}")
        difference = after.difference(again)
        outcome["same_twice"] = not difference
        told += f"; lived twice: {difference or 'the same events'}"
    if has_trace:
        outcome["trace"] = events
        if not options.as_json:
            say("\n".join(events))
    options.say(outcome, f"{named}: {told}")
    return 0 if passed and outcome.get("same_twice", True) else FAILED


# --- which test ---


def _wanted(what: str, test: str) -> _Wanted:
    """Return what to run; `what` is a seed, a test, or a file of a printed program."""
    if what.isdecimal():
        return _named(test, int(what)) if test else _found(int(what))
    if test or ".py" not in what:
        why = f"{what!r} is neither a seed nor a file of tests"
        raise Misuse(why=why, step=f"give one of {_FORMS}")
    return _named(what, None)


def _found(seed: int) -> _Wanted:
    """Return the test of a seed alone: one that failed here, or whose seed is kept."""
    here = Path.cwd()
    for root in (here, *here.parents):
        if dump_path(root, seed).exists():
            try:
                before = Dump.read(dump_path(root, seed))
            except UnreadableDump as error:
                raise Problem(why=str(error), step="run the failing test again") from None
            return _Wanted(root, before.test, seed, before)
        tests = [name for name, seeds in _kept(root) if seed in seeds]
        if len(tests) > 1:
            why = f"{len(tests)} tests keep seed {seed}: {', '.join(tests)}"
            raise Misuse(why=why, step=f"name one: callboard replay {seed} {tests[0]}")
        if tests:
            return _Wanted(root, tests[0], seed)
    why = f"no {FOLDER / f'{seed}.json'} here or in a folder above, nor is it in {KEPT}"
    step = f"name the test: callboard replay {seed} FILE::TEST; or run the failing test again"
    raise Misuse(why=why, step=f"{step}, it leaves one")


def _kept(root: Path) -> list[tuple[str, list[int]]]:
    """Return the tests below a folder that keep seeds, and these."""
    found = []
    for path in sorted((root / KEPT).glob("*.txt")):
        name, *lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
        found.append(
            (name.removeprefix("# "), [int(each) for each in lines if each.isdecimal()])
        )
    return found


def _named(test: str, seed: int | None) -> _Wanted:
    """Return a test that is named, if there is one of that name."""
    file, *names = test.split("::")
    here = Path.cwd()
    homes = [root for root in (here, *here.parents) if (root / file).is_file()]
    if not homes:
        there = sorted(each.relative_to(here).as_posix() for each in here.glob("**/*test*.py"))
        raise Misuse(why=f"there is no file {file}", step=_instead(file, there, "files"))
    try:
        tree = ast.parse((homes[0] / file).read_text(encoding="utf-8"))
    except (SyntaxError, ValueError) as error:
        raise Problem(why=f"{file} is no Python ({error})", step="correct it") from None
    known = [
        each.name
        for each in ast.walk(tree)
        if isinstance(each, ast.FunctionDef) and each.name.startswith("test")
    ]
    wanted = names[-1].partition("[")[0] if names else ""
    if wanted and wanted not in known:
        raise Misuse(why=f"{file} has no test {wanted}", step=_instead(wanted, known, "tests"))
    root = homes[0]
    before = None
    if seed is not None and dump_path(root, seed).exists():
        try:
            dump = Dump.read(dump_path(root, seed))
        except UnreadableDump:
            dump = None
        before = dump if dump is not None and dump.test == test else None
    return _Wanted(root, test, seed, before)


def _instead(given: str, known: list[str], what: str) -> str:
    """Say what may have been meant."""
    near = difflib.get_close_matches(given, known, 3, 0.5) or known[:5]
    return f"did you mean {' or '.join(near)}?" if near else f"there are no {what} of that kind"


# --- its run ---


def _lived(wanted: _Wanted, *, quiet: bool) -> tuple[bool, Dump | None]:
    """Run a test; returns whether it passed, and its events where it left some."""
    with tempfile.TemporaryDirectory() as folder:
        events = Path(folder) / "events.json"
        seed = [] if wanted.seed is None else [f"--callboard-seed={wanted.seed}"]
        command = [
            *(sys.executable, "-m", "pytest", "--rootdir", str(wanted.root), *seed),
            *(f"--callboard-events={events}", wanted.test),
        ]
        sys.stdout.flush()
        output = sys.stderr if quiet else None
        done = subprocess.run(command, cwd=wanted.root, stdout=output, check=False)  # noqa: S603
        code = done.returncode
        is_there = events.exists()
        if code not in (_PASSED, _TESTS_FAILED) or (seed and not is_there):
            why = f"pytest ran no simulation in {wanted.test} (its exit code is {code})"
            step = f"see its output; if the test is gone, remove what {FOLDER.parent} has of it"
            raise Problem(why=why, step=step)
        return code == _PASSED, Dump.read(events) if is_there else None
