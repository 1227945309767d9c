"""The metrics of the stores on a node, under the names of Broker 2.x."""

from operator import attrgetter
from typing import Final
from weakref import WeakSet

from callboard.endpoint.hub import Hub
from callboard.figures import Figure, Labels, Metric, metrics_of
from callboard.store.store_actor import StoreActor

Stores = dict[Labels, list[StoreActor]]


#: What is summed of the machines of stores, and what it means.
_SUMS: Final = (
    ("input_channels", "Writers that a master listens to; masters that a clone follows."),
    ("output_channels", "Clones that follow a master; masters that a clone writes to."),
    ("out_of_order", "Commands that came too early and wait for those before them."),
    ("size", "Keys that a master or clone holds."),
    ("processed", "Commands that a master or clone has carried out."),
    ("unacknowledged", "Commands that not all clones, or not the master, have acknowledged."),
)

#: What metrics call it where that is another name.
_NAMES: Final = {
    "out_of_order": "out_of_order_updates",
    "size": "entries",
    "processed": "processed_updates_total",
    "unacknowledged": "unacknowledged_updates",
}


def _figure(attribute: str, text: str) -> Figure[Stores]:
    """Return the sum of an attribute over the machines of stores with the same labels."""
    read = attrgetter(f"machine.{attribute}")
    return Figure(
        f"broker_store_{_NAMES.get(attribute, attribute)}",
        text,
        lambda stores: [(labels, sum(map(read, found))) for labels, found in stores.items()],
    )


_FIGURES: Final = tuple(_figure(*row) for row in _SUMS)


class StoreMeter:
    """Reads the figures of all stores of a hub that have not ended."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self.actors: WeakSet[StoreActor] = WeakSet()

    def __call__(self) -> list[Metric]:
        """Return their metrics; none without stores."""
        stores: Stores = {}
        for actor in sorted(self.actors, key=lambda actor: actor.name):
            if actor.error is None:
                own = (("name", actor.name), ("type", actor.machine.role))
                stores.setdefault((("endpoint", self._hub.name), *own), []).append(actor)
        return metrics_of(_FIGURES, stores) if stores else []


def count_store(actor: StoreActor) -> None:
    """Let a store appear among the metrics of its endpoint until it ends."""
    hub = actor.hub
    with hub.lock:
        meter = next((one for one in hub.meters if isinstance(one, StoreMeter)), None)
        if meter is None:
            meter = StoreMeter(hub)
            hub.meters.append(meter)
        meter.actors.add(actor)
