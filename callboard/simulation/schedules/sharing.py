"""Detection of state shared between actors: mutable objects that two of them can reach.

References are followed from an actor, from the messages in its mailbox, from the local
variables of its coroutine handlers, and from closures and global names of its methods. State
that is not reachable in this way, such as files or a database, is not detected.
"""

import dis
import gc
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodDescriptorType,
    MethodType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any, Final

from callboard.kernel.activation import Cell
from callboard.kernel.actors import ActorRef
from callboard.kernel.environment import Runtime
from callboard.kernel.reply import Future
from callboard.node import Node

#: Types that are immutable, or whose contents are not followed.
_CONSTANT: Final = (
    *(int, float, complex, str, bytes, range, type(None), type(...), ModuleType, CodeType),
    *(BuiltinFunctionType, ActorRef, Cell, Future, Runtime, Node),
)

#: Types that are immutable but refer to other objects.
_FROZEN: Final = (
    *(tuple, frozenset, FunctionType, MethodType, type, staticmethod, classmethod, property),
    *(GetSetDescriptorType, MemberDescriptorType, MethodDescriptorType, WrapperDescriptorType),
)

#: Maximum objects to follow from one actor; an actor with more counts as sharing.
_MOST: Final = 5_000

#: Top-level packages whose functions and classes are not followed.
_KNOWN: Final = frozenset({"callboard", "thespian", *sys.stdlib_module_names})


class Sharing:
    """The actors that share state with another one, as detected during a run."""

    def __init__(self) -> None:
        #: Actors that share state.
        self.actors: set[Cell] = set()
        self._reach: defaultdict[object, set[Cell]] = defaultdict(set)
        #: Visited objects, kept alive so that no new object gets the id of an old one.
        self._visited: dict[int, object] = {}
        #: Attribute values of user classes when they were first visited.
        self._classes: dict[type, tuple[object, ...]] = {}
        #: Global names and closure variables that some function assigns.
        self._assigned: set[object] = set()
        self._inspected: set[Cell] = set()

    def forget(self, cell: Cell) -> None:
        """Inspect an actor again next time, because it took a step."""
        self._inspected.discard(cell)

    def inspect(self, cell: Cell) -> None:
        """Find the objects that an actor can reach, unless it was inspected already."""
        if cell in self._inspected or _is_known(type(cell.actor)):
            return
        self._inspected.add(cell)
        visited: set[int] = set()
        todo = [cell.actor, *cell.waiting, *type(cell.actor).__mro__]
        tasks = [cell.task, *(cell.rare.tasks if cell.rare is not None else ())]
        for task in tasks:
            if task is not None:
                frame = getattr(task.coroutine, "cr_frame", None)
                todo += [] if frame is None else [dict(frame.f_locals)]
        while todo:
            item = todo.pop()
            if isinstance(item, _CONSTANT) or id(item) in visited:
                continue
            visited.add(id(item))
            if len(visited) > _MOST:
                self.actors.add(cell)
                return
            if not isinstance(item, _FROZEN):
                self._visited[id(item)] = item
                self._reached(id(item), cell)
            todo += self._referents(item, cell)

    def _reached(self, target: object, cell: Cell) -> None:
        """Record that an actor can reach an object or a name."""
        actors = self._reach[target]
        actors.add(cell)
        if len(actors) > 1 and (type(target) is int or target in self._assigned):
            self.actors |= actors

    def _referents(self, item: object, cell: Cell) -> Iterator[object]:
        """Yield the objects that an object refers to."""
        if isinstance(item, FunctionType):
            if not _is_known(item):
                yield from self._function_referents(item, cell)
        elif isinstance(item, type):
            if not _is_known(item):
                values = tuple(vars(item).values())
                first_values = self._classes.setdefault(item, values)
                if list(map(id, first_values)) != list(map(id, values)):
                    self._assigned.add((item, ""))
                self._reached((item, ""), cell)
                yield from values
        elif not type(item).__module__.startswith("callboard."):
            yield from gc.get_referents(item)

    def _function_referents(self, function: FunctionType, cell: Cell) -> Iterator[object]:
        """Yield the closure variables of a function, and the globals that it uses."""
        names, changed = _names(function.__code__)
        home = function.__globals__
        for name in names:
            if name in home:
                key = (id(home), name)
                if name in changed:
                    self._assigned.add(key)
                self._reached(key, cell)
                yield home[name]
        for name, variable in zip(
            function.__code__.co_freevars, function.__closure__ or (), strict=True
        ):
            self._visited[id(variable)] = variable
            if name in changed:
                self._assigned.add((id(variable), ""))
            self._reached((id(variable), ""), cell)
            try:
                yield variable.cell_contents
            except ValueError:  # not set yet
                continue


def _is_known(item: Any) -> bool:
    """Return whether a class or function belongs to callboard or the standard library."""
    return str(getattr(item, "__module__", "")).partition(".")[0] in _KNOWN


@cache
def _names(code: CodeType) -> tuple[frozenset[str], frozenset[str]]:
    """Return the global and closure names that a function uses, and those that it assigns."""
    names, changed = set(), set()
    for instruction in dis.get_instructions(code):
        if instruction.opname in {"LOAD_GLOBAL", "STORE_GLOBAL", "DELETE_GLOBAL", "LOAD_NAME"}:
            names.add(str(instruction.argval))
        if instruction.opname in {"STORE_GLOBAL", "DELETE_GLOBAL", "STORE_DEREF"}:
            changed.add(str(instruction.argval))
        if isinstance(instruction.argval, CodeType):
            more, more_changed = _names(instruction.argval)
            names |= more
            changed |= more_changed
    return frozenset(names), frozenset(changed)
