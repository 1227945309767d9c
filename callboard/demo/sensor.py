"""Sensors: actors that sample this machine ten times a second and publish the results.

Samples are quick: counters are read once and their differences computed here; of all
processes, only a tenth is read at a time.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from callboard.demo.aggregator import Receipt, SensorReading, UseAggregator, topic_of
from callboard.kernel.actors import Actor, ActorRef, Down, handler

#: The subjects of a node's sensors.
SUBJECTS: Final = ("cpu", "memory", "disk", "network", "processes")

#: Number of samples in which every process is read once.
SLICES: Final = 10

#: Number of processes that a sample names.
BUSIEST: Final = 3


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample: its main figure, and the parts of it."""

    level: float
    parts: dict[str, float]


Sampler = Callable[[], Sample]


class Differences:
    """Converts rising counters into rates per second."""

    def __init__(self) -> None:
        self._last: tuple[float, dict[str, float]] | None = None

    def update(self, now: float, counters: Mapping[str, float]) -> dict[str, float]:
        """Return the rate of each counter since the last call; zeros on the first."""
        last, self._last = self._last, (now, dict(counters))
        if last is None or now <= last[0]:
            return dict.fromkeys(counters, 0.0)
        elapsed = now - last[0]
        return {
            name: max(value - last[1].get(name, value), 0.0) / elapsed
            for name, value in counters.items()
        }

    def sample(self, **counters: float) -> Sample:
        """Return the rate of each counter since the last call; the level is their sum."""
        parts = self.update(time.monotonic(), counters)
        return Sample(sum(parts.values()), parts)


class BusiestProcesses:
    """Finds the processes with the highest CPU use, reading a part of them each time."""

    def __init__(self, processes: Callable[[], Iterable[Any]], gone: type[Exception]) -> None:
        """Create the sampler.

        Args:
            processes: `psutil.process_iter`, which returns the same objects each time.
            gone: exception type for an ended process.
        """
        self._processes = processes
        self._gone = gone
        self._turn = 0
        self._shares: dict[int, tuple[str, float]] = {}

    def sample(self) -> Sample:
        """Read the next part; the level is the CPU use of the busiest process, in percent."""
        self._turn = (self._turn + 1) % SLICES
        shares: dict[int, tuple[str, float]] = {}
        for process in self._processes():
            pid = process.pid
            if pid % SLICES != self._turn:
                if pid in self._shares:
                    shares[pid] = self._shares[pid]
                continue
            try:
                shares[pid] = process.name(), process.cpu_percent()
            except self._gone:
                continue
        self._shares = shares
        top = sorted(shares.items(), key=lambda item: item[1][1], reverse=True)[:BUSIEST]
        parts = {f"{name} {pid}": share for pid, (name, share) in top}
        return Sample(max(parts.values(), default=0.0), parts)


def machine_samplers() -> dict[str, Sampler]:
    """Return a sampler for each subject that reads this machine through psutil."""
    import psutil

    disk, network = Differences(), Differences()
    processes = BusiestProcesses(psutil.process_iter, psutil.Error)

    def cpu() -> Sample:
        cores = psutil.cpu_percent(percpu=True)
        parts = {f"core {number}": share for number, share in enumerate(cores)}
        return Sample(sum(cores) / max(len(cores), 1), parts)

    def memory() -> Sample:
        used = psutil.virtual_memory()
        parts = {"available": float(used.available), "total": float(used.total)}
        return Sample(used.percent, parts)

    def disk_io() -> Sample:
        counters = psutil.disk_io_counters()  # None if a sandbox hides the disks
        amounts = (counters.read_bytes, counters.write_bytes) if counters else (0, 0)
        return disk.sample(read=amounts[0], written=amounts[1])

    def network_io() -> Sample:
        counters = psutil.net_io_counters()
        return network.sample(received=counters.bytes_recv, sent=counters.bytes_sent)

    samplers = (cpu, memory, disk_io, network_io, processes.sample)
    return dict(zip(SUBJECTS, samplers, strict=True))


#: Seconds between two samples.
INTERVAL: Final = 0.1

#: Every tenth reading is also sent as an ask, so that its route can be traced.
FOLLOWED: Final = 10

#: Timeout of a traced reading in seconds.
ANSWER_LIMIT: Final = 5.0

#: Publishes a value under a topic.
Publish = Callable[[str, Any], None]

#: Stores the level of a sensor, by its name.
Keep = Callable[[str, float], None]

#: Reports an event with a kind and fields to the parent, which displays it; thread-safe.
Note = Callable[..., None]


@dataclass(frozen=True, slots=True)
class SampleDue:
    """Timer of the next sample."""


@dataclass(frozen=True, slots=True)
class Rest:
    """Ends the sampling, because the demo is about to settle its accounts."""


class Sensor(Actor):
    """Samples one subject of the machine.

    It publishes while there is an aggregator: from the overseer's notification until its
    monitor reports the aggregator as down. It also monitors the overseer. Every reading is
    written to the store.
    """

    def __init__(
        self,
        name: str,
        sample: Sampler,
        publish: Publish,
        keep: Keep,
        note: Note,
        *,
        is_followed: bool = False,
    ) -> None:
        self.name = name
        self._topic = topic_of(name)
        self._publish = publish
        self._keep = keep
        self._sample = sample
        self._note = note
        self._is_followed = is_followed
        self._number = 0
        self._next_tick = time.monotonic()
        self._is_resting = False
        self._aggregator: ActorRef | None = None
        self._overseer: ActorRef | None = None
        #: End the monitors of the aggregator and the overseer.
        self._demonitors: list[Callable[[], None]] = []
        self.on_tick(SampleDue())

    @handler
    def on_tick(self, _: SampleDue) -> None:
        """Sample, publish, and schedule the next sample for the next tenth of a second."""
        if self._is_resting:
            return
        now = time.monotonic()
        # Ticks that a busy or frozen machine missed are left out, not made up for.
        self._next_tick = max(self._next_tick + INTERVAL, now)
        self.after(self._next_tick - now, SampleDue())
        self._send()

    @handler
    def on_use_aggregator(self, order: UseAggregator) -> None:
        """Watch the aggregator and the overseer, and publish at once."""
        for demonitor in self._demonitors:
            demonitor()
        self._aggregator, self._overseer = order.aggregator, order.overseer
        watched = order.aggregator, order.overseer
        self._demonitors = [self.monitor(ref).cancel for ref in watched]
        self._send()

    @handler
    def on_down(self, down: Down) -> None:
        """Pause without an aggregator; report a lost overseer."""
        if down.ref == self._aggregator:
            self._aggregator = None
        if down.ref == self._overseer:
            self._overseer = None
            self._note("overseer_down", sensor=self.name, reason=str(down.reason))

    @handler
    def on_rest(self, _: Rest) -> None:
        """Stop publishing."""
        self._is_resting = True

    def _send(self) -> None:
        """Sample, store the level, and publish if there is an aggregator."""
        sample = self._sample()
        aggregator = self._aggregator
        if self._is_resting:
            return
        self._keep(self.name, sample.level)
        if aggregator is None:
            return
        self._number += 1
        self._publish(self._topic, [self._number, sample.level, sample.parts])
        if self._is_followed and self._number % FOLLOWED == 0:
            self._ask(aggregator, SensorReading(self.name, self._number))

    def _ask(self, aggregator: ActorRef, reading: SensorReading) -> None:
        """Ask the aggregator, and report the times of the ask and its answer."""
        sent_ns = time.monotonic_ns()
        future = aggregator.ask(reading, timeout=ANSWER_LIMIT)
        note, host = self._note, aggregator.node_id.hex()

        def answered(_: object) -> None:
            now_ns = time.monotonic_ns()
            if future.exception() is not None:
                return  # the monitor reports the failure
            receipt: Receipt = future.result()
            note(
                "answered",
                host=host,
                message_id=future.sent_id,
                number=reading.number,
                sent_ns=sent_ns,
                handled_ns=receipt.handled_ns,
                answered_ns=now_ns,
            )

        future.add_done_callback(answered)
