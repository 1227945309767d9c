"""Inspection tables of a node's entities: types, slots, active entities, and their events."""

from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Final

from callboard.entity.host import EntityHost
from callboard.entity.inspection.figures import EntityStats
from callboard.entity.journal.entry import Entry
from callboard.entity.machine.table import slot_of
from callboard.entity.ownership import called
from callboard.entity.state.interface import EntityState, StoredEvent
from callboard.kernel.access import Rights
from callboard.kernel.context import NodeContext
from callboard.kernel.topology import Topology
from callboard.support.inspection_tables import Row
from callboard.support.keyed_name import is_key

#: Latest events of one entity in the table of events.
EVENT_ROWS_LIMIT: Final = 1_000


class EntityTables:
    """The inspection tables of one node's entities."""

    def __init__(
        self,
        runtime: NodeContext,
        hosts: Mapping[str, EntityHost],
        stats: Callable[[], list[EntityStats]],
    ) -> None:
        """Show the entities of some hosts.

        Args:
            runtime: the runtime of the node.
            hosts: the hosts on the node, by type.
            stats: returns the statistics of each hosted type.
        """
        self._runtime, self._hosts, self._stats = runtime, hosts, stats

    def add_to(self, topology: Topology) -> None:
        """Add the tables to those of a node."""
        topology.add_table("entities", self._types)
        topology.add_table("entity_slots", self._slots)
        topology.add_table("entity_cells", self._cells)
        topology.add_table("entity_events", self._events)

    def _types(self, _filter: str, permits: Rights | None) -> list[Row]:
        """Return a row for each hosted type. Runs on the node's thread."""
        return [
            {
                name: getattr(stats, name)
                for name in stats.__dataclass_fields__
                if name != "commit_seconds"
            }
            for stats in self._stats()
            if _may_inspect(permits, stats.type)
        ]

    def _slots(self, type_filter: str, permits: Rights | None) -> list[Row]:
        """Return a row for each slot of a type, or of all types, that this node owns."""
        rows = []
        for name, host in sorted(self._hosts.items()):
            if type_filter in ("", name) and _may_inspect(permits, name):
                active = Counter(cell.slot for cell in list(host.cells.values()))
                rows += [
                    {
                        "type": name,
                        "slot": slot,
                        "epoch": epoch,
                        "active": active[slot],
                        "leaves": host.gives_away(slot),
                    }
                    for slot, epoch in sorted(host.epochs.items())
                ]
        return rows

    def _cells(self, type_filter: str, permits: Rights | None) -> list[Row]:
        """Return a row for each active entity of a type, or of all types."""
        now = self._runtime.now()
        return [
            {
                "type": name,
                "key": cell.key,
                "slot": cell.slot,
                "number": cell.written,
                "depth": cell.depth,
                "idle": round(max(0.0, now - cell.last_used), 1),
            }
            for name, host in sorted(self._hosts.items())
            if type_filter in ("", name) and _may_inspect(permits, name)
            for cell in list(host.cells.values())
        ]

    async def _events(self, entity: str, permits: Rights | None) -> list[Row]:
        """Return the latest events of an entity `TYPE/KEY`, if this node owns it."""
        name, _, key = entity.partition("/")
        host = self._hosts.get(name)
        if host is None or host.state is None or permits is not None or not is_key(key):
            return []
        if not host.serves(slot_of(key)):
            return []
        recent: deque[StoredEvent] = deque(maxlen=EVENT_ROWS_LIMIT)
        cell = host.cells.get(key)
        after = 0 if cell is None else max(0, cell.written - EVENT_ROWS_LIMIT)
        while page := await called(host.state, EntityState.events, name, key, after, 1_000):
            recent.extend(page)
            after = page[-1].number
        return [
            {
                "number": event.number,
                "time": Entry.moment(event.time_ms).isoformat(timespec="milliseconds"),
                "kind": event.kind,
                "version": event.version,
                "epoch": event.epoch,
                "position": event.position,
                "fields": event.body,
            }
            for event in recent
        ]


def _may_inspect(permits: Rights | None, type_name: str) -> bool:
    """Return whether rights permit to inspect a type."""
    return permits is None or permits.permit("entities", type_name)
