"""Spark looks for the known anomalies in a year of real temperatures.

The temperatures are data of the National Oceanic and Atmospheric Administration of the United
States, in the public domain, as shipped with the Python package vega_datasets 0.9.0. They are
in degrees Fahrenheit, for San Francisco and Seattle, and contain no anomalies; this program
adds the ones in `ANOMALIES`.

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

#: Anomalies, each repeated until the end of the year.
ANOMALIES: Final = (
    # first hour, hours between two of them, duration in hours, added degrees
    (1_000, 487, 1, 4.0),  # a spike: the sun on the sensor
    (1_200, 631, 1, -3.0),  # a spike down: a bad contact
    (2_000, 1_709, 3, 1.5),  # warm air of a machine beside it
    (1_500, 907, 1, 0.6),  # hard to distinguish from weather
)


class Reading(NamedTuple):
    """One hour of one place.

    Attributes:
        place: Name of the place.
        time: Nanoseconds since 1970.
        temperature: Degrees Fahrenheit.
        is_anomaly: Whether degrees were added.
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
        message = f"there is no series of {place!r}; use one of {', '.join(PLACES)}"
        raise ValueError(message)
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
    """Return the added degrees by hour; each place has its anomalies on other days."""
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
    # One baseline for each hour of the day.
    hourly = Settings(detection=Detection(warmup=72, slots=24))
    spark = session("local[2]", conf={"spark.sql.shuffle.partitions": "2"})  # little data
    try:
        with tempfile.TemporaryDirectory() as folder:
            with CommitLog(folder) as log:
                log.append_batch(
                    [{"value": reading.temperature} for reading in readings],
                    topic="/temperatures",
                    time=[reading.time for reading in readings],
                )
            rows = spark.read.format("callboard").schema(schema_of(hourly)).load(folder)
            matches = anomalies(values(rows, hourly), hourly).collect()
    finally:
        spark.stop()
    return {round(row.time.timestamp()) * 10**9 for row in matches}


def main() -> None:
    readings = load_temperatures()
    added = {reading.time for reading in readings if reading.is_anomaly}
    try:
        detected = find_anomalies(readings)
    except SparkMissing as error:
        print("skipped:", error)
        return
    correct = len(added & detected)
    print(f"{len(detected)} anomalies found, {len(added)} are known")
    print(f"precision {correct / len(detected):.2f}, recall {correct / len(added):.2f}")


if __name__ == "__main__":
    main()
