"""Which modules receive what a module publishes.

A link leads from a source to a sink, or from every other module (`ANY`) to a sink: never from
the sink to itself, and also from modules that come later. Links are counted: one added twice
delivers once and takes two removals. A link from a module to itself is one like any other. An
`ANY` link and a named one to the same sink are two links, and deliver once.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Final, Generic, TypeVar

__all__ = ["ANY", "LinkTable"]

ANY: Final = "*"
"""As the source of a link: every other module."""

M = TypeVar("M")


class LinkTable(Generic[M]):
    """The links between modules, of whatever type they are; not thread-safe.

    Every question costs a look at the links of one sink or source.
    """

    def __init__(self) -> None:
        #: By source the sinks, each with the count of its links.
        self._named: dict[M, Counter[M]] = {}
        self._any: Counter[M] = Counter()

    def add(self, source: M | None, sink: M) -> None:
        """Add a link; a source of None is every other module."""
        table = self._any if source is None else self._named.setdefault(source, Counter())
        table[sink] += 1

    def remove(self, source: M | None, sink: M) -> bool:
        """Remove a link once; False when there is none."""
        table = self._any if source is None else self._named.get(source)
        if table is None or not table[sink]:
            return False
        table[sink] -= 1
        if not table[sink]:
            del table[sink]
        if source is not None and not table:
            del self._named[source]
        return True

    def sinks_of(self, source: M) -> tuple[M, ...]:
        """Return who receives what `source` publishes, each once."""
        found = dict.fromkeys(self._named.get(source, ()))
        found.update(dict.fromkeys(sink for sink in self._any if sink is not source))
        return tuple(found)

    def sources_of(self, sink: M) -> tuple[M | None, ...]:
        """Return the sources of a sink's links, None for an `ANY` link."""
        found: list[M | None] = [s for s, sinks in self._named.items() if sink in sinks]
        if sink in self._any:
            found.append(None)
        return tuple(found)

    def forget(self, modules: Iterable[M]) -> None:
        """Remove all links of some modules."""
        for module in modules:
            self._named.pop(module, None)
            self._any.pop(module, None)
            for source in [s for s, sinks in self._named.items() if module in sinks]:
                del self._named[source][module]
                if not self._named[source]:
                    del self._named[source]

    def __len__(self) -> int:
        named = sum(sum(sinks.values()) for sinks in self._named.values())
        return named + sum(self._any.values())
