"""A pipeline that copies a log, in a process of its own, whose sink may be told to die.

    python -m tests.faults.pipeline_copy MASTER LOG OUT CHECKPOINT [before|after BATCH MARKER]

The sink dies once: while MARKER exists, in the commit of that batch, before or after that
publishes.
"""

import os
import signal
import sys
from pathlib import Path

from callboard.pipeline import session
from callboard.pipeline.spark.format import CallboardFormat
from callboard.pipeline.spark.sink import LogStreamWriter, SinkOptions

ROWS = 2000


class MortalWriter(LogStreamWriter):
    """Kills its process in one commit."""

    def __init__(self, options, schema, when, batch, marker):
        super().__init__(options, schema)
        self._death = (when, int(batch), Path(marker))

    def commit(self, messages, batchId):  # noqa: N803
        when, batch, marker = self._death
        dies = batchId == batch and marker.exists()
        if dies:
            marker.unlink()
        if dies and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        super().commit(messages, batchId)
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)


class MortalFormat(CallboardFormat):
    """The format with a sink that dies."""

    def streamWriter(self, schema, overwrite):  # noqa: N802
        death = self.options["death"].split(",")
        return MortalWriter(SinkOptions.parse(self.options), schema, *death)


def main(master, log, out, checkpoint, *death):
    spark = session(master, conf={"spark.sql.shuffle.partitions": "2", "spark.cores.max": "2"})
    rows = spark.readStream.format("callboard").option("maxOffsetsPerTrigger", str(ROWS))
    writer = rows.load(log).writeStream.format("callboard").option("staging", "shared")
    if death:
        spark.dataSource.register(MortalFormat)
        writer = writer.option("death", ",".join(death))
    writer = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True)
    try:
        writer.start(out).awaitTermination()
    except Exception as error:  # noqa: BLE001
        print(str(error)[:2000], file=sys.stderr)
        sys.exit(3)
    finally:
        spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
