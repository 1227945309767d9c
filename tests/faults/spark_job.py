"""A job of two queries: copies of all records, and measures of each topic and second.

    python -m tests.faults.spark_job MASTER LOG RESULTS CHECKPOINTS SHARED ADDRESS

It uses plain Spark. It reads what there is, again and again, and ends when that was all and
SHARED has a file `stop`. With a cluster as master, ADDRESS is the driver's.
"""

import os
import sys
from pathlib import Path

from callboard.pipeline import session

ROWS = 2000
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


def main(master, log, results, checkpoints, shared, address):
    conf = {"spark.hadoop.fs.viewfs.mounttable.cluster.link./shared": f"file://{shared}"}
    conf["spark.executor.memory"] = "600m"
    if address:
        authority = "CALLBOARD_LOG_AUTHORITY"
        conf |= {"spark.driver.host": address, "spark.driver.bindAddress": address}
        conf[f"spark.executorEnv.{authority}"] = os.environ[authority]
    spark = session(master, conf=conf)
    try:
        while True:
            ends = Path(shared, STOP).exists()
            running = []
            for name, rows in queries(spark, log).items():
                writer = rows.writeStream.format("callboard").option("staging", "driver")
                writer = writer.option("checkpointLocation", f"{checkpoints}/{name}-checkpoint")
                writer = writer.queryName(name).trigger(availableNow=True)
                running.append(writer.start(f"{results}/{name}"))
            for query in running:
                query.awaitTermination()
            if ends:
                return
    finally:
        spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
