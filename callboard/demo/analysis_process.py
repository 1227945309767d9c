"""What Spark does in the demo: `python -m callboard.demo.analysis_process FOLDER`.

| in the folder | |
|---|---|
| `metrics` | the log of what the sensors publish; node A records it |
| `results` | the log of rates, quantiles and anomalies; node A hands them on |
| `state.json` | how far it is, for the parent |

It ends when its input does. When all queries had a batch it is nice to the nodes.
"""

import json
import os
import sys
import threading
from pathlib import Path
from typing import Any, Final

from callboard.commitlog import CommitLog
from callboard.pipeline.errors import PipelineError
from callboard.pipeline.job import Job
from callboard.pipeline.queries import Settings

#: What is asked of the metrics; `windows` tells rates and quantiles.
_QUERIES: Final = ("anomalies", "windows")

_WINDOW: Final = 4.0
#: Seconds of a window, and after its end until it is told: there is one clock only.
_DELAY: Final = 1.0

_REPORT_SECONDS: Final = 0.25
_NICE: Final = 5
_QUICK_TO_START: Final = {
    # Java compiles little, and checks no classes: they are those of Spark.
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
    " -XX:MetaspaceSize=256m -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote",
    # Code that is made for a query pays off with more records than there are here.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.driver.memory": "512m",
}


def main(folder: Path) -> int:
    """Run the queries until the input ends."""
    from callboard.pipeline.spark_session import session

    ends = threading.Event()
    threading.Thread(target=_wait_for_end, args=(ends,), daemon=True).start()
    CommitLog(folder / "metrics", sync="none").close()  # the queries may begin before A records
    _tell(folder, state="starts")
    try:
        spark = session("local[2]", name="callboard demo", conf=_QUICK_TO_START, shortcuts=True)
    except PipelineError as error:
        _tell(folder, state="missing", why=str(error))
        return 1
    # Together they are sooner at their first results than one after the other: most of the
    # time each waits for workers.
    running = [_metrics_job(name, folder).start_stream(spark) for name in _QUERIES]
    is_nice = False
    while not ends.wait(_REPORT_SECONDS):
        rows = sum(each.numInputRows for query in running for each in query.recentProgress)
        _tell(folder, state="runs", rows=rows)
        if not is_nice and all(query.recentProgress for query in running):
            os.setpriority(os.PRIO_PGRP, 0, _NICE)
            is_nice = True
    for query in running:
        query.stop()
    java = spark.sparkContext._gateway.proc  # noqa: SLF001  # there is no other way to it
    spark.stop()
    java.stdin.close()
    java.wait()  # it removes its files; the parent has a limit for that
    return 0


def _metrics_job(name: str, folder: Path) -> Job:
    """Return a query over the metrics."""
    settings = Settings(field="_2", window=_WINDOW, delay=_DELAY)
    log, to = str(folder / "metrics"), str(folder / "results")
    return Job(name, log, to, settings, interval=1.0)


def _tell(folder: Path, **state: Any) -> None:
    """Write the state for the parent; it never sees half of one."""
    temporary = folder / "state.tmp"
    temporary.write_text(json.dumps(state))
    temporary.rename(folder / "state.json")


def _wait_for_end(ends: threading.Event) -> None:
    """Wait until the input ends."""
    while sys.stdin.buffer.read(1):
        pass
    ends.set()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
