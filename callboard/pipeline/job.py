"""A query with all it needs: which log it reads, what it asks, where its results go."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from callboard.pipeline.errors import InvalidSetting
from callboard.pipeline.function import load_function, stated_by
from callboard.pipeline.inputs import LEFT_OUT, OBSERVED, read_rows
from callboard.pipeline.progress import QUERIES as FOLDER
from callboard.pipeline.queries import QUERIES, Query, Settings, check_sides

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Observation, SparkSession
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
        dead_letters: The log that takes records which do not decode; "" leaves them out of what
            is told by their payloads.
        where: Conditions on topic, key, time and offset, by which less is read.
        checkpoint_at: The directory of its checkpoint, where it is not with the results.
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

    @property
    def title(self) -> str:
        """What it is called."""
        return self.name or Path(self.query.partition(":")[0]).stem

    @property
    def folder(self) -> Path:
        """Where its checkpoint and status are: here, if results go to a store."""
        return Path("" if "://" in self.to else self.to) / FOLDER / self.title

    @property
    def checkpoint(self) -> str:
        """The directory of its checkpoint."""
        return self.checkpoint_at or str(self.folder.absolute() / "checkpoint")

    def check(self) -> None:
        """Find what is wrong with it as far as that needs no Spark.

        Raises:
            InvalidSetting: there is no such query or no log, or a setting makes no sense.
        """
        if self.where:
            from callboard.pipeline.spark.conditions import Conditions

            Conditions.parse(self.where)  # or say what is wrong
        self._check_places()
        query = find_query(self.query)
        if query is QUERIES["join"]:
            check_sides(self.settings)
        settings = self.settings
        if settings.time and settings.time == settings.field and "field" in query.uses:
            what = f"--field and --time are both {settings.time!r}; a value is no time"
            raise InvalidSetting(what)
        if self.start != "latest" and "://" not in self.log and not Path(self.log).is_dir():
            what = f"there is no log in {self.log}; record one with: callboard topic record"
            raise InvalidSetting(what)

    def _check_places(self) -> None:
        """Raise `InvalidSetting` where it could not read or write, before Java is started."""
        from callboard.pipeline.spark.cluster import DRIVER, SHARED
        from callboard.pipeline.spark.options import SourceOptions

        if self.staging not in {"", SHARED, DRIVER}:
            what = f"staging={self.staging!r}; give {SHARED} or {DRIVER}"
            raise InvalidSetting(what)
        given = {"path": self.log, "startingOffsets": self.start, "endingOffsets": self.end}
        if "://" in self.dead_letters:
            given["deadLetters"] = self.dead_letters
        SourceOptions.parse(given)

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
        """Return what the query makes of the log."""
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
        options["where"] = self.where
        if self.dead_letters:
            options["deadLetters"] = self.dead_letters
        rows = read_rows(reader, self.log, query, settings, options, observed)
        results = query.build(rows, settings)
        twice = [name for name in results.columns if results.columns.count(name) > 1]
        if twice:
            what = f"results have two columns {twice[0]!r}; a payload has each field once"
            raise InvalidSetting(what)
        return results

    def run_batch(self, spark: "SparkSession") -> int:
        """Read what there is, and append the results; returns how many records were left out.

        These are the records that do not decode, if there is no log for dead letters.
        """
        from pyspark.errors import PySparkAssertionError
        from pyspark.sql import Observation

        left_out = Observation(OBSERVED)
        results = self._results(spark, spark.read, left_out, endingOffsets=self.end)
        writer = results.write.format("callboard").options(**self._sink_options)
        writer.mode("append").save(self.to)
        try:
            return int(left_out.get[LEFT_OUT])
        except PySparkAssertionError:  # nothing was left out, or nobody counted it
            return 0

    def start_stream(self, spark: "SparkSession") -> "StreamingQuery":
        """Begin to follow the log, where the checkpoint says if there is one."""
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


def find_query(name: str) -> Query:
    """Return a query by its name, or a function of a file: `FILE.py:FUNCTION`.

    Raises:
        InvalidSetting: there is none.
    """
    if name in QUERIES:
        return QUERIES[name]
    if ":" not in name:
        known = ", ".join(QUERIES)
        what = f"there is no query {name!r}; take one of {known}, or FILE.py:FUNCTION"
        raise InvalidSetting(what)
    return load_function(name)
