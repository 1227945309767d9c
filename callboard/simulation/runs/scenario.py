"""The function that a test runs many times: its signature for pytest, and its printed form."""

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

from callboard.arguments import require, wrong_argument
from callboard.kernel.errors import WrongArgument, WrongValue
from callboard.simulation.faults import DOER, Fault, FaultKind
from callboard.simulation.runs.swarm import swarm

if TYPE_CHECKING:
    import pytest

_NO_COROUTINE: Final = (
    "time advances when the test calls cluster.advance(…) or .result(…); coroutines run in "
    "handlers of actors"
)


class Scenario:
    """A function of a cluster; its other arguments are fixtures or have defaults.

    It may be a method of a test class. Each run gets a copy of the instance, so that attributes
    set by one run are not visible in the next.
    """

    def __init__(self, function: Callable[..., object], decorator: str) -> None:
        """Inspect a function.

        Args:
            function: the decorated function.
            decorator: name of the decorator, for errors.

        Raises:
            WrongArgument: the function is not a plain function of a cluster.
        """
        name = getattr(function, "__name__", repr(function))
        if isinstance(function, type) or not callable(function):
            needed = f"@{decorator} takes a function or method of a cluster"
            raise wrong_argument(needed, function)
        if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            message = (
                f"@{decorator} takes a plain function, but {name} is `async def`: "
                f"remove `async`; {_NO_COROUTINE}"
            )
            raise WrongArgument(message)
        if inspect.isgeneratorfunction(function):
            message = f"@{decorator} takes a plain function, but {name} has a `yield`"
            raise WrongArgument(message)
        parameters = list(inspect.signature(function).parameters.values())
        self.function = function
        self.name = name
        self._decorator = decorator
        #: The `self` parameter of a method; None for functions.
        self.instance: inspect.Parameter | None = None
        if parameters and _is_method(function, parameters[0].name):
            self.instance = parameters.pop(0)
        if not parameters or parameters[0].kind > inspect.Parameter.VAR_POSITIONAL:
            message = (
                f"@{decorator}: {name} takes no cluster; write `def {name}("
                f"{'self, ' if self.instance else ''}cluster):`"
            )
            raise WrongArgument(message)
        #: Name of its parameter for the cluster.
        self.cluster = parameters[0].name
        fixed = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        self._others = [
            parameter for parameter in parameters[1:] if parameter.kind not in fixed
        ]

    def signature(self) -> inspect.Signature:
        """Return the signature for pytest: the fixtures, and `request`."""
        keyword = inspect.Parameter.KEYWORD_ONLY
        parameters = [] if self.instance is None else [self.instance]
        if all(parameter.name != "request" for parameter in self._others):
            parameters.append(inspect.Parameter("request", keyword))
        return inspect.Signature(
            [*parameters, *(parameter.replace(kind=keyword) for parameter in self._others)]
        )

    def fixtures(self, arguments: dict[str, Any]) -> "pytest.FixtureRequest":
        """Return pytest's request; remove it from the arguments unless the function uses it.

        Raises:
            WrongArgument: pytest is not the caller, or it passes no fixtures.
        """
        __tracebackhide__ = True
        wants = any(parameter.name == "request" for parameter in self._others)
        request = arguments.get("request") if wants else arguments.pop("request", None)
        if request is None:
            message = (
                f"{self.name} is a test for pytest, which passes a cluster; "
                f"{self.name}.scenario is the function. Methods of unittest.TestCase get no "
                "fixtures: remove that base class"
            )
            raise WrongArgument(message)
        found_request: pytest.FixtureRequest = request
        return found_request

    def of(self, bound: tuple[object, ...]) -> Callable[..., object]:
        """Return the function; a method is bound to a new copy of its instance in each call.

        Raises:
            WrongArgument: the function is a method without `self`.
        """
        __tracebackhide__ = True
        if not bound:
            return self.function
        if self.instance is None:
            right = f"def {self.name}(self, {self.cluster}):"
            message = f"@{self._decorator}: {self.name} is a method; write `{right}`"
            raise WrongArgument(message)

        @functools.wraps(self.function)
        def call_on_copy(*args: Any, **options: Any) -> object:
            return self.function(copy.copy(bound[0]), *args, **options)

        return call_on_copy

    def program(
        self,
        needs: Iterable[str],
        options: str,
        title: str,
        request: "pytest.FixtureRequest | None" = None,
    ) -> str:
        """Return the source of a test that runs the function with given options.

        Args:
            needs: names that the options use from `callboard.simulation`.
            options: options of the decorator.
            title: name of the test.
            request: request of the current test, for its parameters and fixtures.
        """
        owner = self._owner(request)
        module = self.function.__module__ if owner is None else owner.__module__
        place = module if owner is None else f"{module}.{owner.__qualname__}"
        required = [
            parameter.name for parameter in self._others if parameter.default is parameter.empty
        ]
        values = dict(_values(request, f"{place}.{self.name}"))
        arguments = [f"{name}={values.get(name, name)}" for name in required]
        fixtures = [name for name in required if name not in values]
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
            f"{', '.join([*instance, self.cluster, *arguments])})\n"
        )
        if owner is not None:
            other_tests = sorted(name for name in dir(owner) if name.startswith("test"))
            camel = "".join(word.capitalize() for word in title.split("_"))
            lines.append(f"class {camel}({place}):")
            lines += [f"    {' = '.join(other_tests)} = None  # only the test below runs", ""]
            test = textwrap.indent(test, "    ")
        return "\n".join([*lines, test])

    def _owner(self, request: "pytest.FixtureRequest | None") -> type | None:
        """Return the test class of a method; None for functions."""
        if self.instance is None or request is None:
            return None
        return type(request.instance)


def _is_method(function: Callable[..., object], first: str) -> bool:
    """Return whether a function is defined in a class and takes `self` first."""
    if isinstance(function, staticmethod) or first == "cluster":
        return False
    home = getattr(function, "__qualname__", "").rpartition(".")[0]
    return bool(home) and not home.endswith("<locals>")


# --- printed tests ---


def _values(request: "pytest.FixtureRequest | None", test: str) -> Iterator[tuple[str, str]]:
    """Yield the parameters of a parametrized test as names and source expressions."""
    call = getattr(getattr(request, "node", None), "callspec", None)
    if call is None or request is None:
        return
    for name, value in call.params.items():
        text = _written(value, request.module) or _mark_expression(
            name, value, request.function, test
        )
        if text:
            yield name, text


def _written(value: object, module: Any) -> str:
    """Return a source expression for a value; empty if none is found."""
    for name, candidate in vars(module).items():
        if candidate is value and (callable(value) or isinstance(value, enum.Enum)):
            return f"{module.__name__}.{name}"
    if isinstance(value, enum.Enum):
        kind = _written(type(value), module)
        return f"{kind}.{value.name}" if kind else ""
    with contextlib.suppress(Exception):  # user-defined __repr__ and __eq__ may raise anything
        tree = ast.parse(repr(value), mode="eval")
        if eval(repr(value), vars(module)) == value:  # noqa: S307 - the repr of a test's own value
            return ast.unparse(_Qualified(module).visit(tree))
    return ""


class _Qualified(ast.NodeTransformer):
    """Qualifies names of a module with the module's name."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def visit_Name(self, node: ast.Name) -> ast.AST:
        """Return the qualified form of a name."""
        is_own = node.id in vars(self._module) or not hasattr(builtins, node.id)
        return ast.Name(f"{self._module.__name__}.{node.id}") if is_own else node


def _mark_expression(name: str, value: object, function: Any, test: str) -> str:
    """Return an expression for a value in the marks of a test; empty if it is not found."""
    for number, mark in enumerate(getattr(function, "pytestmark", ())):
        if mark.name != "parametrize" or len(mark.args) < 2:
            continue
        names, rows = mark.args[:2]
        names = [part.strip() for part in names.split(",")] if isinstance(names, str) else names
        if name not in names or not isinstance(rows, list | tuple):
            continue
        for place, row in enumerate(rows):
            text = f"{test}.pytestmark[{number}].args[1][{place}]"
            cells, cell = row, f"[{list(names).index(name)}]"
            if hasattr(row, "values") and hasattr(row, "marks"):  # a `pytest.param`
                cells, text = row.values, f"{text}.values"
            elif len(names) == 1:
                cells, cell = [row], ""
            if cells[list(names).index(name)] is value:
                return text + cell
    return ""


def _own_fixtures(request: "pytest.FixtureRequest | None", module: str) -> Iterator[str]:
    """Return the fixtures of a test that its own module defines."""
    if request is None:
        return
    for name, candidate in vars(sys.modules[module]).items():
        marker = getattr(candidate, "_fixture_function_marker", None)
        marker = marker or getattr(
            candidate, "_pytestfixturefunction", None
        )  # before pytest 8.4
        if marker is not None and (marker.name or name) in request.fixturenames:
            yield name


def _own_kinds(names: list[str], module: str) -> list[str]:
    """Return the kinds of faults that a test's module defines itself."""
    kit, names_there = vars(sys.modules["callboard.simulation"]), vars(sys.modules[module])
    return [
        name
        for name in names
        if name not in kit and isinstance(names_there.get(name), FaultKind)
    ]


# --- outcomes ---


def is_failure(error: BaseException) -> bool:
    """Return whether an error is a failure of the test, and not a skip or an interrupt."""
    if "pytest" in sys.modules:
        pytest = sys.modules["pytest"]
        if isinstance(error, pytest.fail.Exception):
            return not isinstance(error, pytest.xfail.Exception)
    return isinstance(error, Exception) and not isinstance(error, unittest.SkipTest)


def ends_all(error: BaseException) -> bool:
    """Return whether an error ends more than the test, such as KeyboardInterrupt."""
    return isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit)


# --- arguments ---


def checked_seeds(seeds: int | Iterable[int]) -> int | list[int]:
    """Check a number of seeds or a list of seeds, and return it.

    Raises:
        WrongArgument: the value is neither.
        WrongValue: there is no seed, or one is negative.
    """
    needed = "seeds= takes a number of seeds, such as 100, or a list of them"
    if isinstance(seeds, int) and not isinstance(seeds, bool):
        if seeds < 1:
            message = f"seeds={seeds}: a test needs at least one seed; {needed}"
            raise WrongValue(message)
        return seeds
    listed = whole_numbers(seeds, needed)
    if not listed:
        message = f"seeds=[]: a test needs at least one seed; {needed}"
        raise WrongValue(message)
    return listed


def whole_numbers(numbers: object, needed: str) -> list[int]:
    """Check whole numbers of at least 0, and return them as a list.

    Raises:
        WrongArgument: the value is something else.
        WrongValue: a number is negative.
    """
    is_listed = isinstance(numbers, Iterable) and not isinstance(numbers, str | bytes)
    require(is_listed, needed, numbers)
    listed: list[Any] = list(numbers)  # type: ignore[call-overload]
    for number in listed:
        require(type(number) is int, f"{needed}, of whole numbers", number)
        if number < 0:
            message = f"{needed} of at least 0; {number} is negative"
            raise WrongValue(message)
    return listed


def checked_faults(faults: object, decorator: str) -> list[Fault]:
    """Check a list of faults and return it.

    Raises:
        WrongArgument: the value is something else.
    """
    drawn = f", or {swarm.__name__}(…)" if decorator == "cluster_test" else ""
    needed = f"faults= of @{decorator} takes a list, such as [crash(0, at=2)]{drawn}"
    if faults is swarm and drawn:
        message = f"{needed}; call `swarm`: faults=swarm()"
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
    """Return the error for a kind of fault in place of a fault."""
    places = ", ".join(map(str, range(kind.machines)))
    unit = f", {kind.unit}=…" if kind.unit else ""
    drawn = f", or let a swarm draw it: swarm({kind})" if decorator == "cluster_test" else ""
    message = (
        f"{needed}; {kind} is a kind of fault: call it, {kind}({places}, at=2{unit}){drawn}"
    )
    return WrongArgument(message)
