"""A job of two queries: copies of all records, and measures of each topic and second.

    python -m tests.faults.spark_job MASTER LOG RESULTS CHECKPOINTS SHARED ADDRESS

It uses plain Spark. On the cluster of MASTER, where ADDRESS is the driver's, it reads what
comes, and ends when SHARED has a file `stop` and all was read. Then the same job runs on a
local master, for results in RESULTS/local.
"""

import os
import sys
from pathlib import Path

from callboard.pipeline import session
from tests.faults.quick_spark import SETTINGS

ROWS = 1000
"""Records of a micro-batch at most."""

STOP = "stop"
SCHEMA = "time TIMESTAMP, topic STRING, load DOUBLE"
MEASURES = ("count(*) AS records", "min(load) AS min", "max(load) AS max", "avg(load) AS mean")


def queries(spark, log):
    """Return rows for the sink by the names of the queries."""
    from pyspark.sql import functions

    reader = spark.readStream.format("callboard").option("token", "the token")
    reader = reader.option("maxOffsetsPerTrigger", str(ROWS))
    loads = reader.schema(SCHEMA).load(log).withWatermark("time", "20 seconds")
    window = functions.expr("window(time, '1 second') AS window")
    measured = loads.groupBy(window, "topic").agg(*map(functions.expr, MEASURES))
    start = "date_format(window.start, \"yyyy-MM-dd'T'HH:mm:ss'Z'\") AS start"
    topic = "concat('/windows', topic) AS topic"
    names = ("records", "min", "max", "mean")
    copies = spark.readStream.format("callboard").option("token", "the token")
    copies = copies.option("maxOffsetsPerTrigger", str(ROWS)).load(log)
    return {"copies": copies, "windows": measured.selectExpr(topic, start, *names)}


def run(spark, log, results, checkpoints, interval, ended):
    """Run both queries until all was read that is there when `ended` is true."""
    running = []
    for name, rows in queries(spark, log).items():
        writer = rows.writeStream.format("callboard").option("staging", "driver")
        writer = writer.option("checkpointLocation", f"{checkpoints}/{name}-checkpoint")
        writer = writer.queryName(name).trigger(processingTime=interval)
        running.append(writer.start(f"{results}/{name}"))
    while not ended():
        for query in running:
            query.awaitTermination(0.1)  # raises why it failed
    for query in running:
        query.processAllAvailable()
        query.stop()


def main(master, log, results, checkpoints, shared, address):
    authority = "CALLBOARD_LOG_AUTHORITY"
    conf = {"spark.hadoop.fs.viewfs.mounttable.cluster.link./shared": f"file://{shared}"}
    conf |= {"spark.executor.memory": "600m", **SETTINGS}
    conf |= {"spark.driver.host": address, "spark.driver.bindAddress": address}
    conf[f"spark.executorEnv.{authority}"] = os.environ[authority]
    spark = session(master, conf=conf)
    try:
        run(spark, log, results, checkpoints, "500 milliseconds", Path(shared, STOP).exists)
    finally:
        spark.stop()
    local = f"{results}/local"
    spark = session("local[2]", conf=conf)
    try:
        run(spark, log, local, local, "0 seconds", lambda: True)
    finally:
        spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
