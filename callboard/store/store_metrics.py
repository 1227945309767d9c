"""The metrics of the stores on a node, under the names of Broker 2.x."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final
from weakref import WeakSet

from callboard.exposition import Labels, Metric
from callboard.store.master import Master
from callboard.store.port import Port

if TYPE_CHECKING:
    from callboard.endpoint.hub import Hub

__all__ = ["count_store"]

Figure = Callable[[Port], float]


def _input_channels(port: Port) -> float:
    machine = port.machine
    return len(machine.inputs) if isinstance(machine, Master) else machine.input is not None


def _output_channels(port: Port) -> float:
    output = port.machine.output
    return 0 if output is None else len(output.consumers)


def _out_of_order(port: Port) -> float:
    machine = port.machine
    if isinstance(machine, Master):
        return sum(consumer.buffered for consumer in list(machine.inputs.values()))
    consumer = machine.input
    return 0 if consumer is None else consumer.buffered


def _entries(port: Port) -> float:
    return len(port.machine.entries)


def _processed(port: Port) -> float:
    return port.machine.processed


def _unacknowledged(port: Port) -> float:
    machine = port.machine
    return machine.output.buffered if isinstance(machine, Master) else machine.unacknowledged


_FIGURES: Final[tuple[tuple[str, str, Figure], ...]] = (
    (
        "broker_store_input_channels",
        "Writers that a master listens to; masters that a clone follows.",
        _input_channels,
    ),
    (
        "broker_store_output_channels",
        "Clones that follow a master; masters that a clone writes to.",
        _output_channels,
    ),
    (
        "broker_store_out_of_order_updates",
        "Commands that came too early and wait for those before them.",
        _out_of_order,
    ),
    ("broker_store_entries", "Keys that a master or clone holds.", _entries),
    (
        "broker_store_processed_updates_total",
        "Commands that a master or clone has carried out.",
        _processed,
    ),
    (
        "broker_store_unacknowledged_updates",
        "Commands that not all clones, or not the master, have acknowledged.",
        _unacknowledged,
    ),
)


class _StoreMeter:
    """Reads the figures of all stores of a hub that have not ended."""

    def __init__(self, hub: "Hub") -> None:
        self._hub = hub
        self.ports: WeakSet[Port] = WeakSet()

    def __call__(self) -> list[Metric]:
        """Return their metrics; none without stores."""
        ports = [port for port in list(self.ports) if port.error is None]
        return [
            Metric(
                name,
                "counter" if name.endswith("_total") else "gauge",
                text,
                self._samples(ports, figure),
            )
            for name, text, figure in _FIGURES
            if ports
        ]

    def _samples(self, ports: list[Port], figure: Figure) -> list[tuple[Labels, float]]:
        # Several clones of a store on one endpoint are added up: a sample has its own labels.
        sums: dict[Labels, float] = {}
        for port in sorted(ports, key=lambda port: port.name):
            role = "master" if isinstance(port.machine, Master) else "clone"
            labels = (("endpoint", self._hub.name), ("name", port.name), ("type", role))
            sums[labels] = sums.get(labels, 0) + figure(port)
        return list(sums.items())


def count_store(hub: "Hub", port: Port) -> None:
    """Let a store appear among the metrics of its endpoint until it ends."""
    with hub.lock:
        found = [meter for meter in hub.meters if isinstance(meter, _StoreMeter)]
        meter = found[0] if found else _StoreMeter(hub)
        if not found:
            hub.meters.append(meter)
        meter.ports.add(port)
