"""Pipelines that copy logs, in a separate process whose sink can be killed.

    python -m tests.faults.pipeline_copy MASTER

Each line of its input is a pipeline, `{"log": …, "out": …, "checkpoint": …, "death": …}`, and
each line of its output says, when one has ended, why it failed, or `""`. A death is
`["before", 3]` or `["after", 3]`: in the commit of that batch, before or after that publishes.
"""

import json
import os
import signal
import sys

from callboard.pipeline import session
from callboard.pipeline.spark.format import CallboardFormat
from callboard.pipeline.spark.sink import LogStreamWriter, SinkOptions
from tests.faults.quick_spark import SETTINGS

ROWS = 2000


class MortalWriter(LogStreamWriter):
    """Kills its process in one commit."""

    def __init__(self, options, schema, when, batch):
        super().__init__(options, schema)
        self._death = (when, batch)

    def commit(self, messages, batchId):  # noqa: N803
        when, batch = self._death
        if batchId == batch and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        super().commit(messages, batchId)
        if batchId == batch:
            os.kill(os.getpid(), signal.SIGKILL)


class MortalFormat(CallboardFormat):
    """The format with a sink that dies."""

    @classmethod
    def name(cls):
        return "mortal"

    def streamWriter(self, schema, overwrite):  # noqa: N802
        options = dict(self.options)
        when, batch = json.loads(options.pop("death"))
        return MortalWriter(SinkOptions.parse(options), schema, when, batch)


def copy(spark, *, log, out, checkpoint, death=None):
    """Copy the available records; return the reason of a failure, or ""."""
    rows = spark.readStream.format("callboard").option("maxOffsetsPerTrigger", str(ROWS))
    writer = rows.load(log).writeStream.format("mortal" if death else "callboard")
    if death:
        writer = writer.option("death", json.dumps(death))
    writer = writer.option("checkpointLocation", checkpoint).option("staging", "shared")
    writer = writer.trigger(availableNow=True)
    try:
        writer.start(out).awaitTermination()
    except Exception as error:  # noqa: BLE001
        return str(error)[:2000] or repr(error)
    return ""


def main(master):
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Java says there what it likes
    spark = session(master, conf={"spark.cores.max": "2", **SETTINGS})
    spark.dataSource.register(MortalFormat)
    try:
        for line in sys.stdin:
            print(json.dumps(copy(spark, **json.loads(line))), file=answers, flush=True)
    finally:
        spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
