"""A query with its settings: the log that it reads, and where its results go."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from callboard.pipeline.errors import InvalidSetting
from callboard.pipeline.function import load_function, stated_by
from callboard.pipeline.inputs import LEFT_OUT, OBSERVED, read_rows
from callboard.pipeline.progress import QUERIES as FOLDER
from callboard.pipeline.queries import QUERIES, QueryKind, Settings, check_sides

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Observation, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


@dataclass(frozen=True, slots=True)
class Job:
    """A query to run.

    Attributes:
        query: The name of a query, or `FILE.py:FUNCTION`.
        log: The directory of the log that is read.
        to: The directory of the log for the results.
        settings: Settings of the query.
        topics: Prefixes of the topics to read, separated by commas.
        start: Where it starts: earliest, latest, an offset or a time.
        end: Where it ends, if it is a batch.
        max_rows: Most records in a micro-batch.
        min_rows: Fewest records in a micro-batch, for which it waits up to 15 minutes.
        ends: Whether it ends when all records are read.
        interval: Seconds between micro-batches; 0 for as soon as there are records.
        name: Name for its checkpoint and progress; by default that of the query.
        retain: How long results are kept, like `bytes=1000000000,seconds=86400`.
        staging: Which hosts of a cluster have the folder of the results: shared or driver.
        dead_letters: The log for records that do not decode; "" skips them.
        where: Conditions on topic, key, time and offset that limit the records to read.
        checkpoint_at: The directory of its checkpoint, if it is not beside the results.
        accept_log: State of a log, with which positions of another log are continued.
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
    dead_letters: str = ""
    checkpoint_at: str = ""
    where: str = ""
    min_rows: int | None = None
    accept_log: str = ""

    @property
    def title(self) -> str:
        """Name of the job."""
        return self.name or Path(self.query.partition(":")[0]).stem

    @property
    def folder(self) -> Path:
        """Folder of its checkpoint and status; local if the results go to a store."""
        return Path("" if "://" in self.to else self.to) / FOLDER / self.title

    @property
    def checkpoint(self) -> str:
        """Directory of its checkpoint."""
        return self.checkpoint_at or str(self.folder.absolute() / "checkpoint")

    def check(self) -> None:
        """Check everything that can be checked without Spark.

        Raises:
            InvalidSetting: the query or the log is missing, or a setting is invalid.
        """
        if self.where:
            from callboard.pipeline.spark.conditions import Conditions

            Conditions.parse(self.where)  # raises if it is invalid
        self._check_places()
        query = find_query(self.query)
        if query is QUERIES["join"]:
            check_sides(self.settings)
        settings = self.settings
        if settings.time and settings.time == settings.field and "field" in query.uses:
            msg = f"--field and --time are both {settings.time!r}; a value cannot be the time"
            raise InvalidSetting(msg)
        if self.start != "latest" and "://" not in self.log and not Path(self.log).is_dir():
            msg = f"there is no log in {self.log}; record one with: callboard topic record"
            raise InvalidSetting(msg)

    def check_again(self) -> None:
        """Check that the results of a replay are not added to those of the query itself.

        Raises:
            InvalidSetting: the query writes to the same log.
        """
        if (self.folder / "checkpoint").exists():
            msg = (
                f"{self.to} has the results of {self.title}, which would be there twice after a"
                " replay; name another log with --to"
            )
            raise InvalidSetting(msg)

    def _check_places(self) -> None:
        """Raise `InvalidSetting` for invalid places, before Java is started."""
        from callboard.pipeline.spark.cluster import DRIVER, SHARED
        from callboard.pipeline.spark.options import SourceOptions

        if self.staging not in {"", SHARED, DRIVER}:
            msg = f"staging={self.staging!r}; use {SHARED} or {DRIVER}"
            raise InvalidSetting(msg)
        if _is_same(self.to, self.log):
            msg = f"--log and --to are both {self.to}, so results would be read as records; "
            msg += "name another log with --to"
            raise InvalidSetting(msg)
        if self.dead_letters and _is_same(self.to, self.dead_letters):
            msg = f"--dead-letters and --to are both {self.to}; name a log of its own for each"
            raise InvalidSetting(msg)
        options = {"path": self.log, "startingOffsets": self.start, "endingOffsets": self.end}
        if "://" in self.dead_letters:
            options["deadLetters"] = self.dead_letters
        SourceOptions.parse(options)

    @property
    def _sink_options(self) -> dict[str, str]:
        options = {"retain": self.retain, "staging": self.staging}
        return {name: value for name, value in options.items() if value}

    def _results(
        self,
        spark: "SparkSession",
        reader: Any,
        observed: "str | Observation" = OBSERVED,
        **options: str,
    ) -> "DataFrame":
        """Return the results of the query."""
        query, settings, topics = find_query(self.query), self.settings, self.topics
        if stated := stated_by(query):
            schema, time = settings.schema or stated.schema, settings.time or stated.time
            settings = replace(settings, schema=schema, time=time)
            topics = topics or ",".join(stated.topics)
        options |= {"topics": topics, "startingOffsets": self.start}
        options["timeZone"] = spark.conf.get("spark.sql.session.timeZone") or "UTC"
        if self.staging:
            options["staging"] = self.staging
        if self.max_rows is not None:
            options["maxOffsetsPerTrigger"] = str(self.max_rows)
        if self.min_rows is not None:
            options["minOffsetsPerTrigger"] = str(self.min_rows)
        options["where"] = self.where
        if self.accept_log:
            options["acceptLog"] = self.accept_log
        if self.dead_letters:
            options["deadLetters"] = self.dead_letters
        rows = read_rows(reader, self.log, query, settings, options, observed)
        results = query.build(rows, settings)
        duplicates = [name for name in results.columns if results.columns.count(name) > 1]
        if duplicates:
            msg = f"results have two columns {duplicates[0]!r}; rename or drop one"
            raise InvalidSetting(msg)
        return results

    def run_batch(self, spark: "SparkSession") -> int:
        """Read all records and append the results; return the number of skipped records.

        Records that do not decode are skipped if dead letters are off.
        """
        from pyspark.errors import PySparkAssertionError
        from pyspark.sql import Observation

        spark.sparkContext.setJobDescription(f"{self.title} of {self.log} to {self.to}")
        skipped = Observation(OBSERVED)
        results = self._results(spark, spark.read, skipped, endingOffsets=self.end)
        writer = results.write.format("callboard").options(**self._sink_options)
        writer.mode("append").save(self.to)
        try:
            return int(skipped.get[LEFT_OUT])
        except PySparkAssertionError:  # no record was skipped, or the query does not count
            return 0

    def start_stream(self, spark: "SparkSession") -> "StreamingQuery":
        """Start following the log, from the checkpoint if there is one."""
        from callboard.pipeline.spark.checkpoint import local_path

        sync = "batch" if local_path(self.checkpoint) is None else "checkpoint"
        writer = (
            self._results(spark, spark.readStream)
            .writeStream.format("callboard")
            .queryName(self.title)
            .options(**self._sink_options, checkpointLocation=self.checkpoint, sync=sync)
        )
        if self.ends:
            writer = writer.trigger(availableNow=True)
        elif self.interval:
            writer = writer.trigger(processingTime=f"{self.interval} seconds")
        return writer.start(self.to)


def _is_same(place: str, other: str) -> bool:
    """Return whether two addresses name the same log."""
    if "://" in place or "://" in other:
        return place.rstrip("/") == other.rstrip("/")
    return Path(place).resolve() == Path(other).resolve()


def find_query(name: str) -> QueryKind:
    """Return a query by name, or the function in a file: `FILE.py:FUNCTION`.

    Raises:
        InvalidSetting: the query is unknown.
    """
    if name in QUERIES:
        return QUERIES[name]
    if ":" not in name:
        names = ", ".join(QUERIES)
        msg = f"there is no query {name!r}; use one of {names}, or FILE.py:FUNCTION"
        raise InvalidSetting(msg)
    return load_function(name)
