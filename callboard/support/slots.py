"""Slots for parts that a package uses and that stand above it, or are seldom needed.

A slot is filled by name with the place of a part, `module:name` or `module`, which is imported
when the part is used. `callboard.composition` fills them with our own parts as soon as
`callboard` is imported, so ours need no metadata of an installed package. Where a slot has a
group of entry points, those of other distributions are parts too.
"""

from importlib import import_module
from typing import Any, Final


class PartSlot:
    """Parts of one kind by their names.

    Attributes:
        label: what such a part is, for the text of an error.
        group: the entry points by which other distributions bring one; "" for none.
    """

    label: str
    group: str = ""

    def __init__(self, label: str, group: str = "") -> None:
        """Begin empty."""
        self.label, self.group = label, group
        self._places: dict[str, str] = {}

    def fill(self, places: dict[str, str]) -> None:
        """Add parts of our own: their places, by name."""
        self._places.update(places)

    def names(self) -> list[str]:
        """Return the names of our own parts, in the order in which they were filled in."""
        return list(self._places)

    def load(self, name: str) -> Any:
        """Import a part.

        Raises:
            LookupError: there is none of that name.
            ImportError: it needs a package that is not installed.
        """
        place = self._places.get(name)
        if place is None:
            return self._brought(name)
        module, _, attribute = place.partition(":")
        part: Any = import_module(module)
        return getattr(part, attribute) if attribute else part

    def _brought(self, name: str) -> Any:
        """Return a part of another distribution."""
        if self.group:
            from importlib.metadata import entry_points  # takes as long as importing a node

            for entry in entry_points(group=self.group, name=name):
                return entry.load()
        message = f"there is no {self.label} {name!r}"
        raise LookupError(message)


#: Nouns of the command line: a module with an `app` each.
COMMANDS: Final = PartSlot("command")

#: Wires of foreign software that endpoints peer by: the class of each, made with the hub.
WIRES: Final = PartSlot("wire", "callboard.wires")

#: Ports and clients of other protocols: the class or module of each.
DOORS: Final = PartSlot("door")

#: Databases behind states and leases: the class of each.
BACKENDS: Final = PartSlot("backend", "callboard.backends")

#: What a public node can be made with: the class or module of each.
NODE_PARTS: Final = PartSlot("part of nodes", "callboard.node_parts")

#: What opens logs that are not in a folder, by the scheme of the address.
LOG_OPENERS: Final = PartSlot("opener of logs", "callboard.log_openers")

#: What opens the port of a Thespian system.
OPENERS: Final = PartSlot("opener of ports", "callboard.openers")

#: What Spark's executors import before their first task.
TASK_MODULES: Final = PartSlot("module of tasks")
