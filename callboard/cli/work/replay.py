"""Implementation of `callboard replay`: rerun a simulation by its seed, compare its events."""

import ast
import difflib
import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final, NamedTuple

from callboard.cli.cli_error import FAILED, CliError, UsageError
from callboard.cli.options import JsonOptions
from callboard.cli.output import say
from callboard.simulation.cluster_test import KEPT
from callboard.simulation.trace import FOLDER, Dump, UnreadableDump, dump_path

_PASSED, _TESTS_FAILED = 0, 1  # exit codes of pytest; any other means that no test ran

_FORMS: Final = "callboard replay SEED, SEED FILE::TEST, or FILE::TEST"


class _RunRequest(NamedTuple):
    """A test to run in a folder, with its seed and its earlier events if known."""

    root: Path
    test: str
    seed: int | None = None
    before: Dump | None = None


def replay(
    source: str, test: str, options: JsonOptions, *, has_trace: bool, is_twice: bool
) -> int:
    """Rerun the test of a seed, or a printed program; return the exit code.

    Args:
        source: a seed, a test or a file.
        test: the test of the seed, if given.
        options: output format.
        has_trace: whether all events are printed.
        is_twice: whether it is run twice, and both runs are compared.

    Raises:
        CliError: the seed is unknown, or its test cannot be run.
    """
    target = _find_test(source, test)
    if importlib.util.find_spec("pytest") is None:
        raise CliError(why="pytest is not installed here", step="pip install pytest")
    passed, dump = _run_test(target, quiet=options.as_json)
    label = f"seed {target.seed}" if target.seed is not None else target.test
    events = [] if dump is None else dump.events
    outcome: dict[str, Any] = {
        "seed": target.seed if dump is None else dump.seed,
        "test": target.test,
        "passed": passed,
        "same_events": None,
        "events": len(events),
        "difference": "",
    }
    summary = f"{len(events):,} events; it {'passed' if passed else 'failed'}"
    if target.before is not None and dump is not None:
        outcome["difference"] = target.before.difference(dump)
        outcome["same_events"] = not outcome["difference"]
        summary = target.before.compare(dump)
    if is_twice:
        second_dump = _run_test(target, quiet=True)[1]
        if dump is None or second_dump is None:
            raise CliError(why=f"{target.test} leaves no events", step=f"pass a seed: {_FORMS}")
        difference = dump.difference(second_dump)
        outcome["same_twice"] = not difference
        summary += f"; run twice: {difference or 'the same events'}"
    if has_trace:
        outcome["trace"] = events
        if not options.as_json:
            say("\n".join(events))
    options.say(outcome, f"{label}: {summary}")
    return 0 if passed and outcome.get("same_twice", True) else FAILED


# --- which test ---


def _find_test(source: str, test: str) -> _RunRequest:
    """Return the test to run; `source` is a seed, a test, or a printed program."""
    if source.isdecimal():
        return _test_by_name(test, int(source)) if test else _test_of_seed(int(source))
    if test or ".py" not in source:
        reason = f"{source!r} is neither a seed nor a file of tests"
        raise UsageError(why=reason, step=f"use one of {_FORMS}")
    return _test_by_name(source, None)


def _test_of_seed(seed: int) -> _RunRequest:
    """Return the test of a seed: one that failed here, or that keeps the seed."""
    folder = Path.cwd()
    for root in (folder, *folder.parents):
        if dump_path(root, seed).exists():
            try:
                dump = Dump.read(dump_path(root, seed))
            except UnreadableDump as error:
                raise CliError(why=str(error), step="run the failing test again") from None
            return _RunRequest(root, dump.test, seed, dump)
        tests = [name for name, seeds in _tests_with_seeds(root) if seed in seeds]
        if len(tests) > 1:
            reason = f"{len(tests)} tests keep seed {seed}: {', '.join(tests)}"
            raise UsageError(why=reason, step=f"name one: callboard replay {seed} {tests[0]}")
        if tests:
            return _RunRequest(root, tests[0], seed)
    reason = f"no {FOLDER / f'{seed}.json'} here or in a folder above, nor is it in {KEPT}"
    step = f"name the test: callboard replay {seed} FILE::TEST; or run the failing test again"
    raise UsageError(why=reason, step=f"{step} to create it")


def _tests_with_seeds(root: Path) -> list[tuple[str, list[int]]]:
    """Return the tests below a folder that keep seeds, with the seeds."""
    tests = []
    for path in sorted((root / KEPT).glob("*.txt")):
        name, *lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
        tests.append(
            (name.removeprefix("# "), [int(line) for line in lines if line.isdecimal()])
        )
    return tests


def _test_by_name(test: str, seed: int | None) -> _RunRequest:
    """Return a test by its name, if it exists."""
    file, *names = test.split("::")
    folder = Path.cwd()
    roots = [root for root in (folder, *folder.parents) if (root / file).is_file()]
    if not roots:
        files = sorted(
            item.relative_to(folder).as_posix() for item in folder.glob("**/*test*.py")
        )
        raise UsageError(why=f"there is no file {file}", step=_suggestion(file, files, "files"))
    try:
        tree = ast.parse((roots[0] / file).read_text(encoding="utf-8"))
    except (SyntaxError, ValueError) as error:
        raise CliError(why=f"{file} is not valid Python ({error})", step="correct it") from None
    test_names = [
        item.name
        for item in ast.walk(tree)
        if isinstance(item, ast.FunctionDef) and item.name.startswith("test")
    ]
    test_name = names[-1].partition("[")[0] if names else ""
    if test_name and test_name not in test_names:
        raise UsageError(
            why=f"{file} has no test {test_name}",
            step=_suggestion(test_name, test_names, "tests"),
        )
    root = roots[0]
    earlier = None
    if seed is not None and dump_path(root, seed).exists():
        try:
            dump = Dump.read(dump_path(root, seed))
        except UnreadableDump:
            dump = None
        earlier = dump if dump is not None and dump.test == test else None
    return _RunRequest(root, test, seed, earlier)


def _suggestion(name: str, choices: list[str], kind: str) -> str:
    """Suggest similar names."""
    matches = difflib.get_close_matches(name, choices, 3, 0.5) or choices[:5]
    return (
        f"did you mean {' or '.join(matches)}?"
        if matches
        else f"there are no {kind} of that kind"
    )


# --- its run ---


def _run_test(target: _RunRequest, *, quiet: bool) -> tuple[bool, Dump | None]:
    """Run a test; return whether it passed, and its events if it has left any."""
    with tempfile.TemporaryDirectory() as folder:
        events = Path(folder) / "events.json"
        seed = [] if target.seed is None else [f"--callboard-seed={target.seed}"]
        command = [
            *(sys.executable, "-m", "pytest", "--rootdir", str(target.root), *seed),
            *(f"--callboard-events={events}", target.test),
        ]
        sys.stdout.flush()
        output = sys.stderr if quiet else None
        result = subprocess.run(command, cwd=target.root, stdout=output, check=False)  # noqa: S603
        code = result.returncode
        has_events = events.exists()
        if code not in (_PASSED, _TESTS_FAILED) or (seed and not has_events):
            reason = f"pytest ran no simulation in {target.test} (its exit code is {code})"
            step = (
                f"see its output; if the test was removed, remove its files in {FOLDER.parent}"
            )
            raise CliError(why=reason, step=step)
        return code == _PASSED, Dump.read(events) if has_events else None
