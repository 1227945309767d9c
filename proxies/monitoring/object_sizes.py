"""Estimated memory of actors by class, from samples.

The objects that an actor refers to are followed and added up. Of a container with many items
only some are followed, and count for the others. Not followed are objects that the actor does
not own alone as a rule: classes, functions, modules, refs, and objects of callboard, such as
stores. An object that two actors share counts for both.
"""

import gc
import sys
from collections.abc import Generator, Iterable
from types import (
    BuiltinFunctionType,
    CodeType,
    FrameType,
    FunctionType,
    ModuleType,
    TracebackType,
)
from typing import Final

from callboard.actors.cell import Cell
from callboard.actors.values import Answer
from callboard.support.dataclass import dataclass

#: Actors of one class that are measured, and objects that are followed in each.
ACTORS_OF_CLASS: Final = 20
OBJECTS_OF_ACTOR: Final = 20_000

#: Items of one container that are followed.
ITEMS: Final = 1_000

#: Objects that are followed between two pauses: about a millisecond.
OBJECTS_OF_SLICE: Final = 2_000

#: Values that exist once in a process.
_SHARED: Final = (type(None), bool, type(...), type(NotImplemented))
_SKIPPED: Final = (
    *(type, ModuleType, FunctionType, BuiltinFunctionType, CodeType, FrameType),
    *(TracebackType, *_SHARED),
)

#: Types of objects whose modules begin with this belong to callboard.
_OWN: Final = "callboard."


@dataclass(slots=True)
class ClassSize:
    """The estimated memory of the actors of a class.

    Attributes:
        actor_class: name of the class.
        actors: how many there are.
        measured: how many of them were measured.
        bytes: memory of all, if the others are like the measured ones.
        largest_bytes: memory of the largest measured one.
        largest: the text of its ref.
    """

    actor_class: str
    actors: int = 0
    measured: int = 0
    bytes: float = 0.0
    largest_bytes: float = 0.0
    largest: str = ""


def measured_sizes(cells: Iterable[Cell]) -> Generator[None, None, list[ClassSize]]:
    """Measure actors; yield when it is time to let other actors run.

    Returns:
        The sizes, the largest class first.
    """
    groups: dict[type, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(type(cell.actor), []).append(cell)
    sizes = []
    for actor_class, group in groups.items():
        size = ClassSize(actor_class.__qualname__, len(group))
        step = max(1, len(group) // ACTORS_OF_CLASS)
        for cell in group[::step][:ACTORS_OF_CLASS]:
            own_bytes = yield from _size_of(cell)
            size.measured += 1
            size.bytes += own_bytes
            if own_bytes >= size.largest_bytes:
                size.largest_bytes, size.largest = own_bytes, str(cell.ref)
        size.bytes *= size.actors / size.measured
        sizes.append(size)
    return sorted(sizes, key=lambda entry: -entry.bytes)


def _size_of(cell: Cell) -> Generator[None, None, float]:
    """Return the estimated memory of one actor and of its running handler, in bytes."""
    roots: list[Answer] = [cell.actor]
    tasks = () if cell.rare is None else tuple(cell.rare.tasks)
    roots += [task.coroutine for task in (cell.task, *tasks) if task is not None]
    #: Objects to follow, each with the number of objects that it stands for.
    pending = [(root, 1.0) for root in roots]
    visited = {id(root) for root in roots}
    total, count = 0.0, 0
    while pending and count < OBJECTS_OF_ACTOR:
        value, weight = pending.pop()
        count += 1
        try:
            total += weight * sys.getsizeof(value)
        except Exception:  # noqa: BLE001, S112  # `__sizeof__` of a class of the user
            continue
        inner = _parts_of(value)
        if len(inner) > ITEMS:
            sample = inner[:: len(inner) // ITEMS]
            inner, weight = sample, weight * len(inner) / len(sample)
        for item in inner:
            if id(item) not in visited and not _is_skipped(item):
                visited.add(id(item))
                pending.append((item, weight))
        if not count % OBJECTS_OF_SLICE:
            yield
    return total


def _parts_of(value: Answer) -> list[Answer]:
    """Return the objects that an object refers to."""
    if isinstance(value, dict):  # the garbage collector does not see keys that are texts
        return [*dict.keys(value), *dict.values(value)]
    return gc.get_referents(value)


def _is_skipped(item: Answer) -> bool:
    """Return whether an object does not count as a part of an actor."""
    kind = type(item)
    return kind in _SKIPPED or issubclass(kind, type) or kind.__module__.startswith(_OWN)
