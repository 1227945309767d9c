"""The measurements of one node, and the inspection tables that show them.

The parts in `monitoring/` are imported when they are used, so they do not slow down the start.
"""

from collections.abc import Callable, Collection
from dataclasses import field
from functools import cached_property
from typing import TYPE_CHECKING, Final

from callboard.actors.cell import Cell
from callboard.actors.future import Future
from callboard.actors.runtime import Runtime
from callboard.actors.values import Answer
from callboard.basp.header import FIRST_ACTOR
from callboard.proxies.actor_sampler import ActorSampler
from callboard.proxies.rights.rights import Rights
from callboard.proxies.stats import AccountInfo, LinkInfo
from callboard.support.dataclass import dataclass
from callboard.support.inspection_tables import Row, Source

if TYPE_CHECKING:
    from callboard.proxies.monitoring.figure_history import FigureHistory, FigureSample
    from callboard.proxies.monitoring.round_trips import RoundTrips
    from callboard.support.platform.process_usage import ProcessUsage

#: Seconds between two slices of a measurement of sizes, so that other actors run.
SLICE_PAUSE: Final = 0.005


@dataclass(eq=False)
class NodeMonitor:
    """Samples and measures one node. Call it on the node's thread."""

    runtime: Runtime
    sampler: ActorSampler
    #: Samples the actors if that is due.
    sample: Callable[[Collection[Cell], float], None]
    #: Sends a short question to the inspector of a neighbor, with a timeout.
    ask: Callable[[bytes, float], Future[Answer]]
    #: Return the node's links, and its accounts with other nodes.
    links: Callable[[], list[LinkInfo]]
    accounts: Callable[[], dict[bytes, AccountInfo]]
    #: Neighbor → seconds of its latest measured round trip.
    round_trips: dict[bytes, float] = field(default_factory=dict)

    @cached_property
    def usage(self) -> "ProcessUsage":
        """The figures of the process."""
        from callboard.support.platform.process_usage import ProcessUsage

        return ProcessUsage()

    @cached_property
    def _history(self) -> "FigureHistory":
        """The figures of the last hour."""
        from callboard.proxies.monitoring.figure_history import FigureHistory

        return FigureHistory()

    @cached_property
    def _questions(self) -> "RoundTrips":
        """The questions to neighbors that measure round trips."""
        from callboard.proxies.monitoring.round_trips import RoundTrips

        return RoundTrips(self.runtime.now, self.ask, self.round_trips)

    def tables(self) -> dict[str, Source]:
        """Return the inspection tables by name."""
        return {"figures": self._figures, "links": self._links, "sizes": self._sizes}

    def tick(self, now: float) -> None:
        """Sample the actors and the figures if that is due; called every second or so."""
        cells = self.runtime.contexts.values()
        self.sample(cells, now)
        if self._history.is_due(now):
            self._history.append(self._sample(cells, now))

    def measure_links(self) -> list[Future[Answer]]:
        """Start to measure the links that were not measured lately."""
        return self._questions.measure(link.peer for link in self.links())

    def _sample(self, cells: Collection[Cell], now: float) -> "FigureSample":
        """Return the figures of this moment."""
        from callboard.proxies.monitoring.figure_history import FigureSample
        from callboard.support.platform.system import resident_bytes

        depths = (cell.depth for cell in list(cells) if cell.number >= FIRST_ACTOR)
        accounts = self.accounts().values()
        return FigureSample(
            time=now,
            handled=self.runtime.handled,
            sent=sum(account.sent for account in accounts),
            lost=sum(account.lost for account in accounts),
            waiting=sum(depths),
            waited=self.sampler.longest_wait(now),
            resident_bytes=resident_bytes(),
        )

    def _figures(self, _: str, __: Rights | None) -> list[Row]:
        """Return a row for each sample of the last hour, the oldest first."""
        now = self.runtime.now()
        return [
            {"age": round(now - sample.time, 1)}
            | {name: value for name, value in sample._asdict().items() if name != "time"}
            for sample in self._history.samples()
        ]

    async def _links(self, _: str, __: Rights | None) -> list[Row]:
        """Return a row for each link with its latest round trip, after measuring it."""
        for answer in self.measure_links():
            try:
                await answer
            except Exception:  # noqa: BLE001, S110  # the round trip is recorded
                pass
        return [
            {
                "peer": link.peer_name or link.peer.hex()[:12],
                "node_id": link.peer.hex(),
                "address": link.address,
                "round_trip": link.round_trip,
                "bytes_waiting": link.bytes_waiting,
                "bytes_sent": link.bytes_sent,
                "bytes_received": link.bytes_received,
                "pauses": link.pauses,
                "guard": link.guard,
                "release": link.release,
            }
            for link in self.links()
            if not link.is_tool
        ]

    async def _sizes(self, class_filter: str, _: Rights | None) -> list[Row]:
        """Return a row for each class of actors, or for one class, the largest first."""
        from callboard.proxies.monitoring.object_sizes import measured_sizes

        cells = [
            cell
            for cell in list(self.runtime.contexts.values())
            if cell.number >= FIRST_ACTOR
            and class_filter in ("", type(cell.actor).__qualname__)
        ]
        measurement = measured_sizes(cells)
        while True:
            try:
                next(measurement)
            except StopIteration as end:
                return [
                    {
                        "class": size.actor_class,
                        "actors": size.actors,
                        "measured": size.measured,
                        "bytes": round(size.bytes),
                        "largest_bytes": round(size.largest_bytes),
                        "largest": size.largest,
                    }
                    for size in end.value
                ]
            pause: Future[None] = Future()
            self.runtime.call_later(SLICE_PAUSE, pause.set_result, None)
            await pause
