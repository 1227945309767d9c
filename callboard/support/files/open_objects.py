"""Registers of the objects of a process that write files, for inspection and backups."""

from collections.abc import Callable
from typing import Generic, TypeVar
from weakref import WeakSet

from callboard import locks

T = TypeVar("T")


class OpenObjects(Generic[T]):
    """The open objects of one kind; an object that is dropped leaves by itself."""

    def __init__(self, guard: locks.Lock) -> None:
        """Create an empty register; `guard` is its lock."""
        self._lock = guard
        self._objects: WeakSet[T] = WeakSet()

    def add(self, item: T) -> None:
        """Add an object."""
        with self._lock:
            self._objects.add(item)

    def discard(self, item: T) -> None:
        """Remove an object if it is there."""
        with self._lock:
            self._objects.discard(item)

    def leave(self, item: T) -> None:
        """Remove an object in a forked process, in which another thread may hold the lock."""
        self._objects.discard(item)

    def sorted(self, key: Callable[[T], str]) -> list[T]:
        """Return all objects in an order."""
        with self._lock:
            objects = list(self._objects)
        return sorted(objects, key=key)
