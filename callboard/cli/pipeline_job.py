"""What was typed about a query of `callboard pipeline`, as a job."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from callboard.cli.failure import FAILED, MISUSED, Failure
from callboard.cli.recording import parse_retention
from callboard.commitlog import LogError
from callboard.pipeline.errors import InvalidSetting, PipelineError, SparkMissing
from callboard.pipeline.job import Job
from callboard.pipeline.queries import Settings, seconds_of
from callboard.pipeline.state import Detection


class Asked(NamedTuple):
    """What was typed about a query, its results included."""

    field: str
    window: str
    delay: str
    threshold: float
    season: str
    left: str
    right: str
    within: str
    topics: list[str] | None
    retain: str


def make_job(query: str, log: Path, to: Path, asked: Asked, **run: Any) -> Job:
    """Return a query with all it needs; `run` is what `Job` takes beside.

    Raises:
        Failure: something of it makes no sense.
    """
    parse_retention(asked.retain)  # or say what is wrong
    with explained():
        settings = Settings(
            asked.field,
            seconds_of(asked.window),
            seconds_of(asked.delay),
            _detection(asked.threshold, asked.season),
            asked.left,
            asked.right,
            seconds_of(asked.within),
        )
    topics = ",".join(asked.topics or ())
    return Job(query, str(log), str(to), settings, topics, retain=asked.retain, **run)


def _detection(threshold: float, season: str) -> Detection:
    if not season:
        return Detection(threshold)
    span, _, slots = season.partition(":")
    if not slots.isdecimal() or int(slots) < 1:
        what = f"--season {season!r} is no season; give one like 1d:24"
        raise InvalidSetting(what)
    return Detection(
        threshold, warmup=3 * int(slots), slots=int(slots), season=seconds_of(span)
    )


@contextmanager
def explained() -> Iterator[None]:
    """Turn errors of the pipeline and of logs into one line."""
    try:
        yield
    except (PipelineError, LogError) as error:
        why, _, step = str(error).partition(";")
        is_misuse = isinstance(error, InvalidSetting) and not isinstance(error, SparkMissing)
        raise Failure(
            why=why,
            step=step.strip() or "see docs/pipeline.md",
            code=MISUSED if is_misuse else FAILED,
        ) from None
