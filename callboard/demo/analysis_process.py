"""The Spark process of the demo: `python -m callboard.demo.analysis_process FOLDER`.

| in the folder | |
|---|---|
| `flights` | the log of the flights, recorded by node A |
| `results` | the log of rates, quantiles and anomalies, published by node A |
| `state.json` | the state of the process, for the parent |

The process ends when its input ends. If it is killed, the next one continues from the
checkpoints of its queries. After the first batch of all queries it lowers its priority
(`nice`), so that the nodes get the CPU.
"""

import json
import os
import sys
import threading
from pathlib import Path
from typing import Any, Final

from callboard.demo.flights.day import DELAY, WINDOW
from callboard.pipeline.errors import PipelineError
from callboard.pipeline.job import Job
from callboard.pipeline.queries import Settings

#: The queries over the flights, with their settings; `windows` computes rates and quantiles.
#: Anomalies are found in the order in which the flights landed.
_QUERIES: Final = {
    "anomalies": Settings(field="excess", time="at"),
    "windows": Settings(field="delay", time="scheduled", window=WINDOW, delay=DELAY),
}

_REPORT_SECONDS: Final = 0.25
_NICE: Final = 5
_QUICK_TO_START: Final = {
    # Compile little, and skip the verification of Spark's own classes.
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
    " -XX:MetaspaceSize=256m -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote",
    # Code generation pays off only with more records than the demo has.
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
    _write_state(folder, state="starts")
    try:
        spark = session("local[2]", name="callboard demo", conf=_QUICK_TO_START, shortcuts=True)
    except PipelineError as error:
        _write_state(folder, state="missing", why=str(error))
        return 1
    # In parallel, the queries reach their first results sooner, because each of them mostly
    # waits for workers.
    running = [_job(name, folder).start_stream(spark) for name in _QUERIES]
    is_nice = False
    while not ends.wait(_REPORT_SECONDS):
        rows = sum(
            progress.numInputRows for query in running for progress in query.recentProgress
        )
        _write_state(folder, state="runs", rows=rows)
        if not is_nice and all(query.recentProgress for query in running):
            os.setpriority(os.PRIO_PGRP, 0, _NICE)
            is_nice = True
    for query in running:
        query.stop()
    java = spark.sparkContext._gateway.proc  # noqa: SLF001  # the only access to it
    spark.stop()
    java.stdin.close()
    java.wait()  # Java removes its files; the parent limits the time for that
    return 0


def _job(name: str, folder: Path) -> Job:
    """Return a query over the flights."""
    log, to = str(folder / "flights"), str(folder / "results")
    return Job(name, log, to, _QUERIES[name], interval=1.0)


def _write_state(folder: Path, **state: Any) -> None:
    """Write the state for the parent, atomically."""
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
