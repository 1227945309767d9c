"""Assertions inside a test: conditions that always hold, and places that must be reached.

`always` fails a run at once. `sometimes` and `reachable` never fail. A test that never reaches
its interesting case looks like one that passes, so `cluster_test` warns about marks that no
seed reached.
"""

import ast
import inspect
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from callboard.kernel.errors import CallboardError


class AlwaysBroken(CallboardError, AssertionError):
    """A condition passed to `always` was false."""


class NeverHappened(UserWarning):
    """No seed of a test reached one of its marks; its faults or times are too harmless."""


class CurrentRun:
    """The marks of the current run.

    It is a global and not a context variable, because handlers run in contexts of their own.

    Attributes:
        counted: number of times that each mark was reached; None outside of runs.
        strike: called when a mark is reached, for faults that wait for one.
        broken: the first failure of `always`, including those in handlers.
    """

    counted: Counter[str] | None = None
    strike: Callable[[], object] | None = None
    broken: AlwaysBroken | None = None


met: Final = CurrentRun()


@contextmanager
def marking(counted: Counter[str]) -> Iterator[CurrentRun]:
    """Count the marks reached within a block; afterwards, `broken` is the first failure."""
    met.counted, met.broken = counted, None
    try:
        yield met
    finally:
        met.counted = met.strike = None


def warn_of_missed(
    test: str, tries: str, scenario: Callable[..., object], counted: Counter[str]
) -> None:
    """Warn about marks in a test and its module that no run reached."""
    try:
        source = inspect.getsource(inspect.getmodule(scenario) or scenario)
    except (OSError, TypeError):  # defined at an interactive prompt
        return
    never = sorted(marks_in(source, scenario.__name__) - set(counted))
    if never:
        text = ", ".join(repr(mark) for mark in never)
        warnings.warn(f"{test}: {tries} never reached {text}", NeverHappened, 2)


def always(condition: object, what: str) -> None:
    """Fail the run unless a condition holds; may also be called in handlers.

    Raises:
        AlwaysBroken: the condition is false.
    """
    if not condition:
        broken = AlwaysBroken(f"it does not hold that {what}")
        met.broken = met.broken or broken
        raise broken


def sometimes(condition: object, what: str) -> None:
    """Expect a condition to hold in at least one seed; a warning names it if it never does."""
    if condition and met.counted is not None:
        met.counted[what] += 1
    if condition and met.strike is not None:
        met.strike()


def reachable(what: str) -> None:
    """Mark a place that at least one seed must reach."""
    sometimes(condition=True, what=what)


def marks_in(source: str, test: str) -> set[str]:
    """Return the texts of all marks in a source, except those in other tests."""
    marks: set[str] = set()
    todo: list[ast.AST] = [ast.parse(source)]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test"):
            if node.name != test:
                continue
        elif isinstance(node, ast.Call):
            marks |= _marks_of(node)
        todo += ast.iter_child_nodes(node)
    return marks


def _marks_of(call: ast.Call) -> set[str]:
    """Return the text of a mark if the call is one, else nothing."""
    name = getattr(call.func, "id", getattr(call.func, "attr", ""))
    index = {"sometimes": 1, "reachable": 0}.get(name)
    if index is None:
        return set()
    texts = call.args[index : index + 1]
    texts += [keyword.value for keyword in call.keywords if keyword.arg == "what"]
    constants = [value.value for value in texts if isinstance(value, ast.Constant)]
    return {text for text in constants if isinstance(text, str)}
