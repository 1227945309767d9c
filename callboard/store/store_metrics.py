"""The metrics of the stores on a node, under the names of Broker 2.x."""

from collections.abc import Callable
from operator import attrgetter
from typing import Final
from weakref import WeakSet

from callboard.endpoint.hub import Hub
from callboard.figures import Figure, Labels, Metric, metrics_of
from callboard.store.store_actor import StoreActor

Stores = dict[Labels, list[StoreActor]]


def _sum(attribute: str) -> Callable[[Stores], list[tuple[Labels, float]]]:
    """Return how to add up an attribute of the machines of stores with the same labels."""
    read = attrgetter(f"machine.{attribute}")
    return lambda stores: [
        (labels, sum(map(read, actors))) for labels, actors in stores.items()
    ]


_FIGURES: Final[tuple[Figure[Stores], ...]] = (
    Figure(
        "broker_store_input_channels",
        "Writers that a master listens to; masters that a clone follows.",
        _sum("input_channels"),
    ),
    Figure(
        "broker_store_output_channels",
        "Clones that follow a master; masters that a clone writes to.",
        _sum("output_channels"),
    ),
    Figure(
        "broker_store_out_of_order_updates",
        "Commands that came too early and wait for those before them.",
        _sum("out_of_order"),
    ),
    Figure("broker_store_entries", "Keys that a master or clone holds.", _sum("size")),
    Figure(
        "broker_store_processed_updates_total",
        "Commands that a master or clone has carried out.",
        _sum("processed"),
    ),
    Figure(
        "broker_store_unacknowledged_updates",
        "Commands that not all clones, or not the master, have acknowledged.",
        _sum("unacknowledged"),
    ),
)


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
