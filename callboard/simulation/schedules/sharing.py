"""What actors share beside messages: objects that can change and that two of them reach.

Objects are followed from what an actor holds, what waits in its mailbox, what its coroutine
handlers have in hand, and the closures and global names of its methods. What is not reached
that way (files, a database) is not seen.
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

#: What never changes, or leads nowhere that actors could change.
_CONSTANT: Final = (
    *(int, float, complex, str, bytes, range, type(None), type(...), ModuleType, CodeType),
    *(BuiltinFunctionType, ActorRef, Cell, Future, Runtime, Node),
)

#: What leads on to other objects and does not change itself.
_FROZEN: Final = (
    *(tuple, frozenset, FunctionType, MethodType, type, staticmethod, classmethod, property),
    *(GetSetDescriptorType, MemberDescriptorType, MethodDescriptorType, WrapperDescriptorType),
)

#: Objects that are followed from one actor; it counts as sharing if there are more.
_MOST: Final = 5_000

#: Rooms whose functions and classes are not followed.
_KNOWN: Final = frozenset({"callboard", "thespian", *sys.stdlib_module_names})


class Sharing:
    """Who shares something with another actor, as far as was seen in a run."""

    def __init__(self) -> None:
        #: The actors that do.
        self.actors: set[Cell] = set()
        self._reach: defaultdict[object, set[Cell]] = defaultdict(set)
        #: Objects that were seen: no other gets the address of one.
        self._kept: dict[int, object] = {}
        #: What user's classes had when they were first seen.
        self._classes: dict[type, tuple[object, ...]] = {}
        #: Names that some function sets: of a global variable or of a closure's.
        self._set: set[object] = set()
        self._looked: set[Cell] = set()

    def forget(self, cell: Cell) -> None:
        """Look at an actor again, which took a step."""
        self._looked.discard(cell)

    def look(self, cell: Cell) -> None:
        """Find out what an actor reaches, unless that is known."""
        if cell in self._looked or _is_known(type(cell.actor)):
            return
        self._looked.add(cell)
        seen: set[int] = set()
        todo = [cell.actor, *cell.waiting, *type(cell.actor).__mro__]
        tasks = [cell.task, *(cell.aside.tasks if cell.aside is not None else ())]
        for task in tasks:
            if task is not None:
                frame = getattr(task.coroutine, "cr_frame", None)
                todo += [] if frame is None else [dict(frame.f_locals)]
        while todo:
            found = todo.pop()
            if isinstance(found, _CONSTANT) or id(found) in seen:
                continue
            seen.add(id(found))
            if len(seen) > _MOST:
                self.actors.add(cell)
                return
            if not isinstance(found, _FROZEN):
                self._kept[id(found)] = found
                self._reached(id(found), cell)
            todo += self._behind(found, cell)

    def _reached(self, what: object, cell: Cell) -> None:
        """Take note that an actor reaches something."""
        by = self._reach[what]
        by.add(cell)
        if len(by) > 1 and (type(what) is int or what in self._set):
            self.actors |= by

    def _behind(self, found: object, cell: Cell) -> Iterator[object]:
        """Yield what an object leads to."""
        if isinstance(found, FunctionType):
            if not _is_known(found):
                yield from self._behind_function(found, cell)
        elif isinstance(found, type):
            if not _is_known(found):
                values = tuple(vars(found).values())
                before = self._classes.setdefault(found, values)
                if list(map(id, before)) != list(map(id, values)):
                    self._set.add((found, ""))
                self._reached((found, ""), cell)
                yield from values
        elif not type(found).__module__.startswith("callboard."):
            yield from gc.get_referents(found)

    def _behind_function(self, function: FunctionType, cell: Cell) -> Iterator[object]:
        """Yield what a function has in its closure and takes from its module."""
        names, changed = _names(function.__code__)
        home = function.__globals__
        for name in names:
            if name in home:
                key = (id(home), name)
                if name in changed:
                    self._set.add(key)
                self._reached(key, cell)
                yield home[name]
        for name, variable in zip(
            function.__code__.co_freevars, function.__closure__ or (), strict=True
        ):
            self._kept[id(variable)] = variable
            if name in changed:
                self._set.add((id(variable), ""))
            self._reached((id(variable), ""), cell)
            try:
                yield variable.cell_contents
            except ValueError:  # not set yet
                continue


def _is_known(made: Any) -> bool:
    """Return whether a class or a function is not a user's."""
    return str(getattr(made, "__module__", "")).partition(".")[0] in _KNOWN


@cache
def _names(code: CodeType) -> tuple[frozenset[str], frozenset[str]]:
    """Return the names that a function takes from outside, and those that it sets there."""
    names, changed = set(), set()
    for instruction in dis.get_instructions(code):
        if instruction.opname in {"LOAD_GLOBAL", "STORE_GLOBAL", "DELETE_GLOBAL", "LOAD_NAME"}:
            names.add(str(instruction.argval))
        if instruction.opname in {"STORE_GLOBAL", "DELETE_GLOBAL", "STORE_DEREF"}:
            changed.add(str(instruction.argval))
        if isinstance(instruction.argval, CodeType):
            more, set_there = _names(instruction.argval)
            names |= more
            changed |= set_there
    return frozenset(names), frozenset(changed)
