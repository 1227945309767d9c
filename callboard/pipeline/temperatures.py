"""Two real series to try pipelines on: hourly temperatures of 2010, with known anomalies.

The temperatures are data of the National Oceanic and Atmospheric Administration of the United
States, in the public domain, as shipped with the Python package vega_datasets 0.9.0. They are
in degrees Fahrenheit, for San Francisco and Seattle, and hold nothing unusual; `ANOMALIES`
says what is added to them here.
"""

import csv
from datetime import UTC, datetime
from importlib.resources import files
from typing import Final, NamedTuple

PLACES: Final = ("san-francisco", "seattle")

ANOMALIES: Final = (
    # first hour of each, step to the next one, hours it lasts, degrees that are added
    (1_000, 487, 1, 4.0),  # a spike: the sun on the sensor
    (1_200, 631, 1, -3.0),  # a spike down: a bad contact
    (2_000, 1_709, 3, 1.5),  # warm air of a machine beside it
    (1_500, 907, 1, 0.6),  # hardly to be told from weather
)
"""What is added, over and over until the year ends."""


class Reading(NamedTuple):
    """One hour of one place.

    Attributes:
        place: Where.
        time: Nanoseconds since 1970.
        temperature: Degrees Fahrenheit.
        is_anomaly: Whether something was added to it.
    """

    place: str
    time: int
    temperature: float
    is_anomaly: bool


def load_temperatures(place: str = PLACES[0]) -> list[Reading]:
    """Return the year of one place, with its anomalies.

    Raises:
        ValueError: there is no such place.
    """
    if place not in PLACES:
        what = f"there is no series of {place!r}; take one of {', '.join(PLACES)}"
        raise ValueError(what)
    added = _added(PLACES.index(place))
    text = (files("callboard.pipeline") / "series" / f"{place}-2010.csv").read_text()
    readings = []
    for hour, row in enumerate(csv.DictReader(text.splitlines())):
        moment = datetime.strptime(row["date"][:16], "%Y/%m/%d %H:%M").replace(tzinfo=UTC)
        extra = added.get(hour, 0.0)
        readings.append(
            Reading(
                place,
                int(moment.timestamp()) * 10**9,
                round(float(row["temp"]) + extra, 1),
                bool(extra),
            )
        )
    return readings


def _added(shift: int) -> dict[int, float]:
    """Return what is added to which hour; places differ by some days."""
    added = {}
    for first, step, hours, degrees in ANOMALIES:
        for begin in range(first + 97 * shift, 8_700, step):
            for hour in range(begin, begin + hours):
                added[hour] = degrees
    return added
