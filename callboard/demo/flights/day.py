"""A day of real flights, and their evaluation in plain Python.

`day.csv` names its source. Each line is a departure or a landing of a flight from one of
the three airports of New York. They are published in the order in which they happened, but
counted in the hour for which they were scheduled: a delayed flight is late data.
"""

import csv
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

from callboard.commitlog import Record
from callboard.pipeline.state import Baseline, Detection, Lateness, count_late, learn_all

#: Prefix of the topics, which end with an airport.
FLIGHTS: Final = "/flights/"
AIRPORTS: Final = ("EWR", "JFK", "LGA")

#: Seconds of a window, and seconds of event time until it is final. The latest flight of the
#: day is 4.9 hours late, so that all flights are in their windows.
WINDOW: Final = 3600.0
DELAY: Final = 6 * 3600.0

#: Seconds after which a flight counts as late.
LATE: Final = 3600.0

FILE: Final = Path(__file__).with_name("day.csv")


class Flight(NamedTuple):
    """A departure or a landing.

    Attributes:
        time: of the departure or landing, in seconds since 1970.
        topic: the topic of its airport in New York.
        payload: the message: `kind`, `flight`, `to`, `scheduled`, `at`, `delay` in minutes, and
            for a landing `excess`, the minutes that the flight took longer than scheduled.
        planted: minutes added to the excess to make an anomaly; 0 for a flight as recorded.
    """

    time: float
    topic: str
    payload: dict[str, Any]
    planted: int


@cache
def load_flights() -> tuple[Flight, ...]:
    """Return the flights in the order in which they happened.

    The last one is of the next day: it ends the last windows of this day.
    """
    with FILE.open(encoding="utf-8", newline="") as file:
        rows = csv.DictReader(line for line in file if not line.startswith("#"))
        return tuple(_flight(row) for row in rows)


def _flight(row: dict[str, str]) -> Flight:
    """Return the flight in a line of the file."""
    actual, scheduled = (
        f"2013-07-{row[name].replace(' ', 'T')}:00Z" for name in ("at", "scheduled")
    )
    payload: dict[str, Any] = {name: row[name] for name in ("kind", "flight", "to")}
    payload |= {"scheduled": scheduled, "at": actual, "delay": int(row["delay"])}
    if row["excess"]:
        payload["excess"] = int(row["excess"])
    return Flight(seconds(actual), FLIGHTS + row["origin"], payload, int(row["planted"] or 0))


def seconds(text: str) -> float:
    """Return a time in ISO 8601 in seconds since 1970."""
    return datetime.fromisoformat(text).timestamp()


class HourWindow(NamedTuple):
    """The flights of an hour: their number, and quantiles of their delays in minutes."""

    records: int
    p50: float
    p99: float


#: A landing with an unusual duration: its topic, its time and its excess.
Unusual = tuple[str, float, float]


@dataclass(slots=True)
class FlightFindings:
    """The results about a log of flights.

    Attributes:
        windows: by topic and start in seconds since 1970.
        anomalies: landings that took unusually long or short.
        landings: time and excess of all landings, by topic.
        lateness: how many flights came after their time, and the longest delay.
    """

    windows: dict[tuple[str, float], HourWindow] = field(default_factory=dict)
    anomalies: list[Unusual] = field(default_factory=list)
    landings: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    lateness: Lateness = Lateness()

    @property
    def records(self) -> int:
        """The number of flights in all windows."""
        return sum(window.records for window in self.windows.values())


def planted() -> list[Unusual]:
    """Return the planted anomalies."""
    return [
        (flight.topic, flight.time, float(flight.payload["excess"]))
        for flight in load_flights()
        if flight.planted
    ]


def evaluate(records: Iterable[Record]) -> FlightFindings:
    """Compute windows and anomalies from a log of flights, in plain Python.

    A window that may still get flights, at the end of the log, is left out, as by Spark.
    """
    findings = FlightFindings()
    delays: defaultdict[tuple[str, float], list[float]] = defaultdict(list)
    landings: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    latest = -math.inf
    times: list[float] = []
    for record in records:
        payload, scheduled = record.payload, seconds(record.payload["scheduled"])
        times.append(scheduled)
        latest = max(latest, scheduled)
        delays[record.topic, scheduled - scheduled % WINDOW].append(float(payload["delay"]))
        if "excess" in payload:
            landings[record.topic].append((seconds(payload["at"]), float(payload["excess"])))
    findings.windows = {
        (topic, start): HourWindow(len(values), _quantile(values, 0.5), _quantile(values, 0.99))
        for (topic, start), values in sorted(delays.items())
        if start + WINDOW <= latest - DELAY
    }
    findings.lateness = count_late(Lateness(), times, LATE)
    findings.landings = dict(landings)
    for topic, values in findings.landings.items():
        _, anomalies = learn_all(Baseline(), values, Detection())
        findings.anomalies += [(topic, time, value) for time, value, _, _ in anomalies]
    return findings


def _quantile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that is not below this share of the values."""
    return sorted(values)[max(math.ceil(len(values) * share), 1) - 1]


def results_of_spark(records: Iterable[Record]) -> tuple[FlightFindings, int]:
    """Return the results that Spark has published, and the number of doubled windows."""
    findings, doubled = FlightFindings(), 0
    counts: dict[tuple[str, float], int] = {}
    for record in records:
        topic, payload = "/" + record.topic.split("/", 2)[2], record.payload
        if record.topic.startswith("/anomalies"):
            findings.anomalies.append((topic, record.time / 1e9, payload["value"]))
            continue
        window = topic, payload["start"].timestamp()
        if record.topic.startswith("/rates"):
            doubled += window in counts
            counts[window] = payload["records"]
        else:
            findings.windows[window] = HourWindow(0, payload["p50"], payload["p99"])
    findings.windows = {
        window: quantiles._replace(records=counts[window])
        for window, quantiles in findings.windows.items()
        if window in counts
    }
    return findings, doubled
