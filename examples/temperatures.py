"""Spark looks for the known anomalies in a year of real temperatures.

The temperatures are data of the National Oceanic and Atmospheric Administration of the United
States, in the public domain, as shipped with the Python package vega_datasets 0.9.0. They are
in degrees Fahrenheit, for San Francisco and Seattle, and hold nothing unusual; `ANOMALIES`
says what is added to them here.

Run it with `python examples/temperatures.py`.
"""

import csv
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

from callboard.commitlog import CommitLog
from callboard.pipeline import SparkMissing, session
from callboard.pipeline.queries import Settings, anomalies, schema_of, values
from callboard.pipeline.state import Detection

SERIES: Final = Path(__file__).parent / "series"
PLACES: Final = ("san-francisco", "seattle")

#: What is added, over and over until the year ends.
ANOMALIES: Final = (
    # first hour of each, step to the next one, hours it lasts, degrees that are added
    (1_000, 487, 1, 4.0),  # a spike: the sun on the sensor
    (1_200, 631, 1, -3.0),  # a spike down: a bad contact
    (2_000, 1_709, 3, 1.5),  # warm air of a machine beside it
    (1_500, 907, 1, 0.6),  # hardly to be told from weather
)


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
    text = (SERIES / f"{place}-2010.csv").read_text()
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


def find_anomalies(readings: list[Reading]) -> set[int]:
    """Return the times at which the query finds an anomaly.

    Raises:
        SparkMissing: there is no Spark, or no Java for it.
    """
    hourly = Settings(
        detection=Detection(warmup=72, slots=24)
    )  # a level for each hour of a day
    spark = session("local[2]", conf={"spark.sql.shuffle.partitions": "2"})  # little data
    try:
        with tempfile.TemporaryDirectory() as folder:
            with CommitLog(folder) as log:
                log.append_batch(
                    [{"value": each.temperature} for each in readings],
                    topic="/temperatures",
                    time=[each.time for each in readings],
                )
            rows = spark.read.format("callboard").schema(schema_of(hourly)).load(folder)
            found = anomalies(values(rows, hourly), hourly).collect()
    finally:
        spark.stop()
    return {round(row.time.timestamp()) * 10**9 for row in found}


def main() -> None:
    readings = load_temperatures()
    known = {each.time for each in readings if each.is_anomaly}
    try:
        found = find_anomalies(readings)
    except SparkMissing as error:
        print("skipped:", error)
        return
    right = len(known & found)
    print(f"{len(found)} anomalies found, {len(known)} are known")
    print(f"precision {right / len(found):.2f}, recall {right / len(known):.2f}")


if __name__ == "__main__":
    main()
