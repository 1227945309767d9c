"""Metrics of the stores on a node, named as in Broker 2.x."""

from collections.abc import Iterator
from operator import attrgetter
from typing import Final
from weakref import WeakSet

from callboard.commitlog import json_text
from callboard.figures import Figure, Labels, Metric, metrics_of
from callboard.kernel.access import Rights
from callboard.store.errors import StoreClosed
from callboard.store.machine.stored import key_of, python_of
from callboard.store.store_actor import StoreActor
from callboard.support.inspection_tables import Row
from callboard.topics.hub import Hub

Stores = dict[Labels, list[StoreActor]]


#: Attributes of store machines that are summed, and the help texts of their metrics.
_SUMS: Final = (
    ("input_channels", "Writers of a master; masters that a clone follows."),
    ("output_channels", "Clones that follow a master; masters that a clone writes to."),
    ("out_of_order", "Commands that arrived early and wait for earlier ones."),
    ("size", "Keys of a master or clone."),
    ("processed", "Commands that a master or clone has executed."),
    ("unacknowledged", "Commands that a clone, or the master, has not acknowledged."),
    ("unreadable", "Commands and stored entries that could not be read and were left out."),
)

#: Names of metrics that differ from the attribute.
_NAMES: Final = {
    "out_of_order": "out_of_order_updates",
    "size": "entries",
    "processed": "processed_updates_total",
    "unacknowledged": "unacknowledged_updates",
    "unreadable": "unreadable_total",
}


def _figure(attribute: str, text: str) -> Figure[Stores]:
    """Return a figure: the sum of an attribute over all stores with the same labels."""
    read = attrgetter(f"machine.{attribute}")
    return Figure(
        f"broker_store_{_NAMES.get(attribute, attribute)}",
        text,
        lambda stores: [(labels, sum(map(read, same))) for labels, same in stores.items()],
    )


#: Characters of a key or value in inspection tables; longer ones are cut.
SHOWN: Final = 2_000


def shown_value(value: object) -> str:
    """Return a key or value as text: a str unchanged, any other value as JSON."""
    return (value if isinstance(value, str) else json_text.to_json(value))[:SHOWN]


_FIGURES: Final = tuple(_figure(*row) for row in _SUMS)


class StoreMeter:
    """Metrics and inspection tables of all running stores of a hub."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self.actors: WeakSet[StoreActor] = WeakSet()
        hub.overlay.add_table("stores", self.store_rows)
        hub.overlay.add_table("keys", self.key_rows)

    def store_rows(self, _which: str, permits: Rights | None) -> list[Row]:
        """Return a row for each master and clone of this node, except closed ones."""
        return [
            {
                "store": actor.name,
                "role": actor.machine.role,
                "keys": actor.machine.size,
                "processed": actor.machine.processed,
                "clones": actor.machine.output_channels,
                "writers": actor.machine.input_channels,
                "lag": actor.machine.unacknowledged,
                "out_of_order": actor.machine.out_of_order,
                "idle": actor.machine.is_idle,
                "error": "" if actor.error is None else str(actor.error),
            }
            for actor in sorted(self.actors, key=lambda actor: actor.name)
            if not isinstance(actor.error, StoreClosed)
            and (permits is None or permits.permit_store(actor.name, "read"))
        ]

    def key_rows(self, store: str, permits: Rights | None) -> Iterator[Row]:
        """Yield a row for each key of a store, from its master here, or else from a clone."""
        if permits is not None and not permits.permit_store(store, "read"):
            return
        same = [actor for actor in self.actors if actor.name == store and actor.error is None]
        for actor in sorted(same, key=lambda actor: actor.machine.role == "clone")[:1]:
            for token, value in list(actor.machine.entries.items()):
                left = actor.machine.expires_in(token)
                text = shown_value(python_of(value))
                yield {"key": shown_value(key_of(token)), "value": text, "expires": left}

    def __call__(self) -> list[Metric]:
        """Return the metrics of all stores; none without stores."""
        stores: Stores = {}
        for actor in sorted(self.actors, key=lambda actor: actor.name):
            if actor.error is None:
                own = (("name", actor.name), ("type", actor.machine.role))
                stores.setdefault((("endpoint", self._hub.name), *own), []).append(actor)
        return metrics_of(_FIGURES, stores) if stores else []


def count_store(actor: StoreActor) -> None:
    """Include a store in the metrics of its endpoint until it ends."""
    hub = actor.hub
    with hub.lock:
        meter = next((meter for meter in hub.meters if isinstance(meter, StoreMeter)), None)
        if meter is None:
            meter = StoreMeter(hub)
            hub.meters.append(meter)
        meter.actors.add(actor)
