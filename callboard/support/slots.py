"""Slots for parts that a package loads but may not import, or that few programs need.

A slot has the address of each part by name: `module:name` or `module`. The module is imported
when the part is loaded. `callboard.composition` fills the slots with our own parts when
`callboard` is imported, so these need no metadata of an installed package. If a slot has a
group of entry points, those of other distributions are parts, too.
"""

from importlib import import_module
from typing import Any, Final


class PartSlot:
    """Parts of one kind by their names.

    Attributes:
        label: name of the kind, for error texts.
        group: group of entry points of other distributions; "" for none.
    """

    label: str
    group: str = ""

    def __init__(self, label: str, group: str = "") -> None:
        """Create an empty slot."""
        self.label, self.group = label, group
        self._addresses: dict[str, str] = {}

    def fill(self, addresses: dict[str, str]) -> None:
        """Add our own parts: their addresses, by name."""
        self._addresses.update(addresses)

    def names(self) -> list[str]:
        """Return the names of our own parts, in the order in which they were added."""
        return list(self._addresses)

    def load(self, name: str) -> Any:
        """Import a part.

        Raises:
            LookupError: the slot has no part of this name.
            ImportError: the part needs a package that is not installed.
        """
        address = self._addresses.get(name)
        if address is None:
            return self._load_entry_point(name)
        module, _, attribute = address.partition(":")
        part: Any = import_module(module)
        return getattr(part, attribute) if attribute else part

    def _load_entry_point(self, name: str) -> Any:
        """Import a part of another distribution."""
        if self.group:
            from importlib.metadata import entry_points  # slow to import

            for entry in entry_points(group=self.group, name=name):
                return entry.load()
        message = f"there is no {self.label} {name!r}"
        raise LookupError(message)


#: Groups of commands: modules with an `app`.
COMMANDS: Final = PartSlot("command")

#: Protocols of other software for peerings of endpoints: classes that are created with the hub.
WIRES: Final = PartSlot("wire", "callboard.wires")

#: Ports and clients of other protocols: classes or modules.
DOORS: Final = PartSlot("door")

#: Databases for states and leases: classes.
BACKENDS: Final = PartSlot("backend", "callboard.backends")

#: Optional parts of public nodes: classes or modules.
NODE_PARTS: Final = PartSlot("part of nodes", "callboard.node_parts")

#: Protocols between nodes besides BASP, by the name of the wire and by the scheme of its
#: addresses: classes that are created with a node and its certificates.
NODE_WIRES: Final = PartSlot("wire of nodes", "callboard.node_wires")

#: Functions that open logs outside a folder, by the scheme of the address.
LOG_OPENERS: Final = PartSlot("opener of logs", "callboard.log_openers")

#: Classes that open the port of a Thespian system.
OPENERS: Final = PartSlot("opener of ports", "callboard.openers")

#: Modules that Spark's executors import before their first task.
TASK_MODULES: Final = PartSlot("module of tasks")
