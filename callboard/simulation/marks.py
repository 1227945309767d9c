"""What has to hold, and what has to happen at least once, told from inside of a test.

`always` fails a run at once. `sometimes` and `reachable` fail nothing: a test that never comes
to what it is for looks like one that passes, so `cluster_test` warns of what no seed came to.
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
    """What always has to hold did not."""


class NeverHappened(UserWarning):
    """No seed of a test came to something that it marks; its faults or times are too tame."""


class Met:
    """The run that is lived just now; handlers have contexts of their own.

    Attributes:
        counted: how often each mark was met in it; None while none is lived.
        strike: called where a mark is met: faults may wait for that.
        broken: the first thing that did not hold as always, also in a handler.
    """

    counted: Counter[str] | None = None
    strike: Callable[[], object] | None = None
    broken: AlwaysBroken | None = None


met: Final = Met()


@contextmanager
def marking(counted: Counter[str]) -> Iterator[Met]:
    """Count the marks that are met in a block; at its end `broken` is what did not hold."""
    met.counted, met.broken = counted, None
    try:
        yield met
    finally:
        met.counted = met.strike = None


def warn_of_missed(
    test: str, tries: str, scenario: Callable[..., object], counted: Counter[str]
) -> None:
    """Warn of marks in a test and its module that no run came to."""
    try:
        source = inspect.getsource(inspect.getmodule(scenario) or scenario)
    except (OSError, TypeError):  # typed at a prompt
        return
    never = sorted(marks_in(source, scenario.__name__) - set(counted))
    if never:
        text = ", ".join(repr(mark) for mark in never)
        warnings.warn(f"{test}: {tries} never came to {text}", NeverHappened, 2)


def always(condition: object, what: str) -> None:
    """Fail the run unless a condition holds, also where a handler says it.

    Raises:
        AlwaysBroken: it does not.
    """
    if not condition:
        broken = AlwaysBroken(f"it does not hold that {what}")
        met.broken = met.broken or broken
        raise broken


def sometimes(condition: object, what: str) -> None:
    """Mark that a condition holds in some seed; a warning names what never does."""
    if condition and met.counted is not None:
        met.counted[what] += 1
    if condition and met.strike is not None:
        met.strike()


def reachable(what: str) -> None:
    """Mark a place that some seed has to come to."""
    sometimes(condition=True, what=what)


def marks_in(source: str, test: str) -> set[str]:
    """Return the texts of all marks in a source, but for those in other tests."""
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
    """Return the text of a call's mark, if it is one."""
    name = getattr(call.func, "id", getattr(call.func, "attr", ""))
    place = {"sometimes": 1, "reachable": 0}.get(name)
    if place is None:
        return set()
    texts = call.args[place : place + 1]
    texts += [keyword.value for keyword in call.keywords if keyword.arg == "what"]
    constants = [each.value for each in texts if isinstance(each, ast.Constant)]
    return {text for text in constants if isinstance(text, str)}
