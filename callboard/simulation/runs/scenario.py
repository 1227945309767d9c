"""The function that a test lives many times, as pytest and printed tests see it."""

import ast
import builtins
import contextlib
import copy
import enum
import functools
import inspect
import sys
import textwrap
import unittest
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from callboard.kernel.checks import require, wrong_argument
from callboard.kernel.errors import WrongArgument, WrongValue
from callboard.simulation.faults import DOER, Fault, FaultKind
from callboard.simulation.runs.swarm import swarm

if TYPE_CHECKING:
    import pytest

_NO_COROUTINE: Final = (
    "time passes where the test calls cluster.advance(…) or .result(…); coroutines run on a "
    "machine of the cluster: cluster.host(name, main)"
)


class Scenario:
    """A function whose argument is a cluster; others are fixtures or have a default.

    A method of a class of tests has its instance before that. Each run gets a copy of the
    instance, so that what a run sets on it is not there in the next one.
    """

    def __init__(self, function: Callable[..., object], decorator: str) -> None:
        """Look at a function.

        Args:
            function: what is decorated.
            decorator: by what, for errors.

        Raises:
            WrongArgument: it is no plain function of a cluster.
        """
        name = getattr(function, "__name__", repr(function))
        if isinstance(function, type) or not callable(function):
            needed = f"@{decorator} takes a function or method of a cluster"
            raise wrong_argument(needed, function)
        if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            message = (
                f"@{decorator} takes a plain function, and {name} is `async def`: "
                f"leave `async` out; {_NO_COROUTINE}"
            )
            raise WrongArgument(message)
        if inspect.isgeneratorfunction(function):
            message = f"@{decorator} takes a plain function, and {name} has a `yield`"
            raise WrongArgument(message)
        parameters = list(inspect.signature(function).parameters.values())
        self.function = function
        self.name = name
        self._decorator = decorator
        #: The parameter of a method for its instance.
        self.instance: inspect.Parameter | None = None
        if parameters and _is_method(function, parameters[0].name):
            self.instance = parameters.pop(0)
        if not parameters or parameters[0].kind > inspect.Parameter.VAR_POSITIONAL:
            message = (
                f"@{decorator}: {name} takes no cluster; write `def {name}("
                f"{'self, ' if self.instance else ''}cluster):`"
            )
            raise WrongArgument(message)
        #: What it calls the cluster.
        self.cluster = parameters[0].name
        fixed = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        self._others = [each for each in parameters[1:] if each.kind not in fixed]

    def signature(self) -> inspect.Signature:
        """Return what pytest sees of the test: its fixtures, and the request for them."""
        keyword = inspect.Parameter.KEYWORD_ONLY
        seen = [] if self.instance is None else [self.instance]
        if all(each.name != "request" for each in self._others):
            seen.append(inspect.Parameter("request", keyword))
        return inspect.Signature(
            [*seen, *(each.replace(kind=keyword) for each in self._others)]
        )

    def fixtures(self, arguments: dict[str, Any]) -> "pytest.FixtureRequest":
        """Take the request out of what pytest gives, unless the function wants it as well.

        Raises:
            WrongArgument: it was not pytest that called, or no fixtures are given there.
        """
        __tracebackhide__ = True
        wants = any(each.name == "request" for each in self._others)
        request = arguments.get("request") if wants else arguments.pop("request", None)
        if request is None:
            message = (
                f"{self.name} is a test for pytest, which gives it a cluster; "
                f"{self.name}.scenario is the function. Methods of unittest.TestCase get no "
                "fixtures: leave that base class out"
            )
            raise WrongArgument(message)
        given: pytest.FixtureRequest = request
        return given

    def of(self, bound: tuple[object, ...]) -> Callable[..., object]:
        """Return the function of a cluster: for a method, on a copy of its instance each time.

        Raises:
            WrongArgument: it is a method without `self`.
        """
        __tracebackhide__ = True
        if not bound:
            return self.function
        if self.instance is None:
            right = f"def {self.name}(self, {self.cluster}):"
            message = f"@{self._decorator}: {self.name} is a method; write `{right}`"
            raise WrongArgument(message)

        @functools.wraps(self.function)
        def lived(*args: Any, **options: Any) -> object:
            return self.function(copy.copy(bound[0]), *args, **options)

        return lived

    def program(
        self,
        needs: Iterable[str],
        options: str,
        title: str,
        request: "pytest.FixtureRequest | None" = None,
    ) -> str:
        """Return a test that lives the function in a way that is known.

        Args:
            needs: what its options need of `callboard.simulation`.
            options: of the decorator.
            title: the name of the test.
            request: that of the test which is lived, for its parameters and fixtures.
        """
        owner = self._owner(request)
        module = self.function.__module__ if owner is None else owner.__module__
        place = module if owner is None else f"{module}.{owner.__qualname__}"
        taken = [each.name for each in self._others if each.default is each.empty]
        values = dict(_values(request, f"{place}.{self.name}"))
        given = [f"{name}={values.get(name, name)}" for name in taken]
        fixtures = [name for name in taken if name not in values]
        names = sorted({self._decorator, *needs})
        kinds = _own_kinds(names, module)
        own = sorted([*_own_fixtures(request, module), *kinds])
        names = [name for name in names if name not in kinds]
        lines = [
            f"from callboard.simulation import {', '.join(names)}",
            f"import {module}",
            *([f"from {module} import {', '.join(own)}"] if own else []),
            "",
        ]
        instance = [] if owner is None else ["self"]
        test = (
            f"@{self._decorator}({options})\n"
            f"def {title}({', '.join([*instance, self.cluster, *fixtures])}):\n"
            f"    {place}.{self.name}.scenario("
            f"{', '.join([*instance, self.cluster, *given])})\n"
        )
        if owner is not None:
            others = sorted(name for name in dir(owner) if name.startswith("test"))
            camel = "".join(word.capitalize() for word in title.split("_"))
            lines.append(f"class {camel}({place}):")
            lines += [f"    {' = '.join(others)} = None  # all but the one below", ""]
            test = textwrap.indent(test, "    ")
        return "\n".join([*lines, test])

    def _owner(self, request: "pytest.FixtureRequest | None") -> type | None:
        """Return the class of tests that the function is a method of."""
        if self.instance is None or request is None:
            return None
        return type(request.instance)


def _is_method(function: Callable[..., object], first: str) -> bool:
    """Return whether a function stands in a class, and its first parameter is the instance."""
    if isinstance(function, staticmethod) or first == "cluster":
        return False
    home = getattr(function, "__qualname__", "").rpartition(".")[0]
    return bool(home) and not home.endswith("<locals>")


# --- what a printed test needs ---


def _values(request: "pytest.FixtureRequest | None", test: str) -> Iterator[tuple[str, str]]:
    """Return how the parameters of a parametrized test are written, by their names."""
    call = getattr(getattr(request, "node", None), "callspec", None)
    if call is None or request is None:
        return
    for name, value in call.params.items():
        text = _written(value, request.module) or _found(name, value, request.function, test)
        if text:
            yield name, text


def _written(value: object, module: Any) -> str:
    """Return an expression for a value; empty if none is known."""
    for name, there in vars(module).items():
        if there is value and (callable(value) or isinstance(value, enum.Enum)):
            return f"{module.__name__}.{name}"
    if isinstance(value, enum.Enum):
        kind = _written(type(value), module)
        return f"{kind}.{value.name}" if kind else ""
    with contextlib.suppress(Exception):  # of any code that a user's classes have
        tree = ast.parse(repr(value), mode="eval")
        if eval(repr(value), vars(module)) == value:  # noqa: S307 - the text of a test's value
            return ast.unparse(_Qualified(module).visit(tree))
    return ""


class _Qualified(ast.NodeTransformer):
    """Puts the module before names that are of it."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def visit_Name(self, node: ast.Name) -> ast.AST:
        """Return what stands in place of a name."""
        is_own = node.id in vars(self._module) or not hasattr(builtins, node.id)
        return ast.Name(f"{self._module.__name__}.{node.id}") if is_own else node


def _found(name: str, value: object, function: Any, test: str) -> str:
    """Return where a value stands in the marks of a test; empty if it is not found."""
    for number, mark in enumerate(getattr(function, "pytestmark", ())):
        if mark.name != "parametrize" or len(mark.args) < 2:
            continue
        names, rows = mark.args[:2]
        names = [each.strip() for each in names.split(",")] if isinstance(names, str) else names
        if name not in names or not isinstance(rows, list | tuple):
            continue
        for place, row in enumerate(rows):
            text = f"{test}.pytestmark[{number}].args[1][{place}]"
            cells, cell = row, f"[{list(names).index(name)}]"
            if hasattr(row, "values") and hasattr(row, "marks"):  # that of `pytest.param`
                cells, text = row.values, f"{text}.values"
            elif len(names) == 1:
                cells, cell = [row], ""
            if cells[list(names).index(name)] is value:
                return text + cell
    return ""


def _own_fixtures(request: "pytest.FixtureRequest | None", module: str) -> Iterator[str]:
    """Return the fixtures of a test that stand in its own module."""
    if request is None:
        return
    for name, there in vars(sys.modules[module]).items():
        marker = getattr(there, "_fixture_function_marker", None)
        marker = marker or getattr(there, "_pytestfixturefunction", None)  # before pytest 8.4
        if marker is not None and (marker.name or name) in request.fixturenames:
            yield name


def _own_kinds(names: list[str], module: str) -> list[str]:
    """Return the names of kinds of faults that a module has, and not the kit."""
    kit, there = vars(sys.modules["callboard.simulation"]), vars(sys.modules[module])
    return [
        name for name in names if name not in kit and isinstance(there.get(name), FaultKind)
    ]


# --- how a run ends ---


def is_failure(error: BaseException) -> bool:
    """Return whether an error is a failure of the test; not if it skips, or ends all tests."""
    if "pytest" in sys.modules:
        pytest = sys.modules["pytest"]
        if isinstance(error, pytest.fail.Exception):
            return not isinstance(error, pytest.xfail.Exception)
    return isinstance(error, Exception) and not isinstance(error, unittest.SkipTest)


def ends_all(error: BaseException) -> bool:
    """Return whether an error is meant to end more than the test."""
    return isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit)


# --- arguments ---


def checked_seeds(seeds: int | Iterable[int]) -> int | list[int]:
    """Return how many seeds, or which ones.

    Raises:
        WrongArgument: it is neither.
        WrongValue: there is none, or one is negative.
    """
    needed = "seeds= takes how many, such as 100, or a list of them"
    if isinstance(seeds, int) and not isinstance(seeds, bool):
        if seeds < 1:
            message = f"seeds={seeds}: a test has one seed or more; {needed}"
            raise WrongValue(message)
        return seeds
    listed = whole_numbers(seeds, needed)
    if not listed:
        message = f"seeds=[]: a test has one seed or more; {needed}"
        raise WrongValue(message)
    return listed


def whole_numbers(numbers: object, needed: str) -> list[int]:
    """Return whole numbers from 0 on as a list.

    Raises:
        WrongArgument: it is something else.
        WrongValue: one is negative.
    """
    is_listed = isinstance(numbers, Iterable) and not isinstance(numbers, str | bytes)
    require(is_listed, needed, numbers)
    listed: list[Any] = list(numbers)  # type: ignore[call-overload]
    for number in listed:
        require(type(number) is int, f"{needed}, of whole numbers", number)
        if number < 0:
            message = f"{needed}, from 0 on; {number} is negative"
            raise WrongValue(message)
    return listed


def checked_faults(faults: object, decorator: str) -> list[Fault]:
    """Return the faults of a test that has the same ones each time.

    Raises:
        WrongArgument: it is something else.
    """
    drawn = f" or {swarm.__name__}(…)" if decorator == "cluster_test" else ""
    needed = f"faults= of @{decorator} takes a list, such as [crash(0, at=2)],{drawn}"
    if faults is swarm:
        message = f"{needed}; `swarm` has to be called: faults=swarm()"
        raise WrongArgument(message)
    if isinstance(faults, Fault):
        message = f"{needed}; write faults=[{faults}]"
        raise WrongArgument(message)
    if isinstance(faults, FaultKind):
        raise _kind_alone(faults, needed, decorator)
    require(isinstance(faults, Iterable) and not isinstance(faults, str), needed, faults)
    listed: list[Any] = list(faults)  # type: ignore[call-overload]
    for fault in listed:
        if isinstance(fault, FaultKind):
            raise _kind_alone(fault, needed, decorator)
        require(isinstance(fault, Fault), needed, fault)
        if decorator != "cluster_test" and DOER in fault.machines:
            message = f'{fault}: "doer" is for {swarm.__name__}s and lists of @cluster_test'
            raise WrongArgument(message)
    return listed


def _kind_alone(kind: FaultKind, needed: str, decorator: str) -> WrongArgument:
    """Return the error of a kind in place of a fault."""
    places = ", ".join(map(str, range(kind.machines)))
    unit = f", {kind.unit}=…" if kind.unit else ""
    drawn = f", or let a swarm draw it: swarm({kind})" if decorator == "cluster_test" else ""
    message = f"{needed}; {kind} is a kind: {kind}({places}, at=2{unit}) is a fault{drawn}"
    return WrongArgument(message)
