"""A query with all it needs: which log it reads, what it asks, where its results go."""

import runpy
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from callboard.pipeline.errors import InvalidSetting
from callboard.pipeline.progress import QUERIES as FOLDER
from callboard.pipeline.queries import QUERIES, Query, Settings, check_sides, schema_of, values

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


@dataclass(frozen=True, slots=True)
class Job:
    """What is run.

    Attributes:
        query: The name of a query, or `FILE.py:FUNCTION`.
        log: The directory of the log that is read.
        to: The directory of the log that takes the results.
        settings: What the query is told.
        topics: Beginnings of topics that it reads, with commas.
        start: Where it begins: earliest, latest, an offset or a time.
        end: Where it ends, if it is a batch.
        max_rows: Records of a micro-batch at most.
        ends: Whether it ends when all was read.
        interval: Seconds between micro-batches; 0 is as soon as there is something.
        name: What it is called, for its checkpoint and progress; by default as the query.
        retain: How long results are kept, like `bytes=1000000000,seconds=86400`.
        staging: Who has the folder of the results on a cluster: shared or driver.
    """

    query: str
    log: str
    to: str
    settings: Settings = field(default_factory=Settings)
    topics: str = ""
    start: str = "earliest"
    end: str = "latest"
    max_rows: int | None = None
    ends: bool = False
    interval: float = 0.0
    name: str = ""
    retain: str = ""
    staging: str = ""

    @property
    def title(self) -> str:
        """What it is called."""
        return self.name or Path(self.query.partition(":")[0]).stem

    @property
    def folder(self) -> Path:
        """Where its checkpoint and status are."""
        return Path(self.to) / FOLDER / self.title

    @property
    def checkpoint(self) -> str:
        """The directory of its checkpoint."""
        return str(self.folder.absolute() / "checkpoint")

    def check(self) -> None:
        """Find what is wrong with it as far as that needs no Spark.

        Raises:
            InvalidSetting: there is no such query or no log, or a setting makes no sense.
        """
        if find_query(self.query) is QUERIES["join"]:
            check_sides(self.settings)
        if self.start != "latest" and not Path(self.log).is_dir():
            what = f"there is no log in {self.log}; record one with: callboard topic record"
            raise InvalidSetting(what)

    @property
    def _sink_options(self) -> dict[str, str]:
        options = {"retain": self.retain, "staging": self.staging}
        return {name: value for name, value in options.items() if value}

    def _results(self, reader: Any, **options: str) -> "DataFrame":
        """Return what the query makes of the log."""
        options |= {"topics": self.topics, "startingOffsets": self.start}
        if self.max_rows is not None:
            options["maxOffsetsPerTrigger"] = str(self.max_rows)
        log = reader.format("callboard").schema(schema_of(self.settings))
        query, rows = find_query(self.query), log.options(**options).load(self.log)
        needed = values(rows, self.settings, needs_values=query.needs_values)
        return query.build(needed, self.settings)

    def run_batch(self, spark: "SparkSession") -> None:
        """Read what there is, and append the results; returns when they are there."""
        results = self._results(spark.read, endingOffsets=self.end)
        writer = results.write.format("callboard").options(**self._sink_options)
        writer.mode("append").save(self.to)

    def start_stream(self, spark: "SparkSession") -> "StreamingQuery":
        """Begin to follow the log, where the checkpoint says if there is one."""
        from callboard.pipeline.spark.checkpoint import local_path

        sync = "batch" if local_path(self.checkpoint) is None else "checkpoint"
        writer = (
            self._results(spark.readStream)
            .writeStream.format("callboard")
            .queryName(self.title)
            .options(**self._sink_options, checkpointLocation=self.checkpoint, sync=sync)
        )
        if self.ends:
            writer = writer.trigger(availableNow=True)
        elif self.interval:
            writer = writer.trigger(processingTime=f"{self.interval} seconds")
        return writer.start(self.to)


def find_query(name: str) -> Query:
    """Return a query by its name, or a function of a file: `FILE.py:FUNCTION`.

    Raises:
        InvalidSetting: there is none.
    """
    if name in QUERIES:
        return QUERIES[name]
    path, colon, function = name.partition(":")
    if not colon:
        known = ", ".join(QUERIES)
        what = f"there is no query {name!r}; take one of {known}, or FILE.py:FUNCTION"
        raise InvalidSetting(what)
    if not Path(path).is_file():
        what = f"there is no file {path}; give FILE.py:FUNCTION"
        raise InvalidSetting(what)
    build: Callable[..., Any] | None = runpy.run_path(path).get(function)
    if not callable(build):
        what = f"{path} has no function {function!r}; it takes rows and settings"
        raise InvalidSetting(what)
    return Query(build, needs_values=False, help=build.__doc__ or "")
