"""The time of a micro-batch of 100 records, from trigger to trigger, median of 30.

Without states the query copies a field; with states it counts in windows of event time.
"""

import tempfile
from collections.abc import Callable
from statistics import median
from typing import Any

from benchmarks.measure import Measure, Subject
from benchmarks.spark_logs import spark_ready, start, write
from callboard.pipeline.queries import Settings, rates, schema_of, values

ROWS = 100
BATCHES = 30
WARM = 5
SETTINGS = Settings(field="load")


def _median(query: Any, share: float, start: Callable[[], Any] = start) -> float:
    batches = max(3, int(BATCHES * share))
    with tempfile.TemporaryDirectory() as folder:
        log = f"{folder}/log"
        write(log, ROWS * (batches + WARM))
        spark = start()
        try:
            rows = spark.readStream.format("callboard").schema(schema_of(SETTINGS))
            rows = rows.option("maxOffsetsPerTrigger", str(ROWS)).load(log)
            writer = query(rows).writeStream.format("callboard").option("staging", "shared")
            writer = writer.option("checkpointLocation", f"{folder}/checkpoint")
            running = writer.trigger(availableNow=True).start(f"{folder}/out")
            running.awaitTermination()
            told = [each for each in running.recentProgress if each.numInputRows][WARM:]
            return median(each.durationMs["triggerExecution"] for each in told) / 1000
        finally:
            spark.stop()


def stateless(share: float = 1.0) -> float:
    """Return seconds of a batch without states."""
    return _median(lambda rows: rows.selectExpr("topic", "time", "load"), share)


def stateful(share: float = 1.0, start: Callable[[], Any] = start) -> float:
    """Return seconds of a batch with windows, in a session that is to be started."""
    return _median(
        lambda rows: rates(values(rows, SETTINGS, needs_values=False), SETTINGS), share, start
    )


MEASURE = Measure(
    title="Spark, one micro-batch",
    unit="s",
    subjects=(
        Subject("callboard, no states", stateless, spark_ready),
        Subject("callboard, windows", stateful, spark_ready),
    ),
    more_is_better=False,
)
