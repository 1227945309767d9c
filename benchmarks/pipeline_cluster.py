"""A micro-batch with windows on a standalone cluster of two workers, beside a local master.

Both run plain Spark, without our shortcuts, on two tasks at a time, and with the same settings.
Master, workers and driver are processes of this machine: six of Java take turns on its
processors while they start, so that a run on the cluster takes about a minute.
"""

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from benchmarks.measure import Measure, Subject
from benchmarks.pipeline_micro_batch import stateful
from benchmarks.spark_logs import spark_ready
from callboard.pipeline import session
from callboard.pipeline.java import find_java

_DEPLOY: Final = "org.apache.spark.deploy"
_PATIENCE: Final = 60.0
_RUN_LIMIT: Final = 240.0
#: Settings that a session on a local master omits.
_QUIET: Final = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
_ADDRESS: Final = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]


@contextmanager
def standalone(workers: int = 2) -> Iterator[str]:
    """Run a master and workers with one processor each; yields the master's address."""
    import pyspark

    launcher = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        environment = {"JAVA_HOME": str(find_java()), "SPARK_LOCAL_IP": "127.0.0.1"}
        environment["SPARK_WORKER_DIR"] = str(folder / "work")
        # Executors run the python3 of their path.
        environment["PATH"] = os.pathsep.join(
            [str(Path(sys.executable).parent), os.environ["PATH"]]
        )

        def start(name: str, *command: str) -> Path:
            said = folder / name
            with said.open("w") as file:
                process = subprocess.Popen(
                    [launcher, *command], env=os.environ | environment, stdout=file, stderr=file
                )
            stack.callback(process.wait)
            stack.callback(process.terminate)
            return said

        master = start("master", f"{_DEPLOY}.master.Master", *_ADDRESS)
        address = _await(master, r"spark://127\.0\.0\.1:\d+")
        command = [f"{_DEPLOY}.worker.Worker", "--cores", "1", "--memory", "1g", *_ADDRESS]
        started = [start(f"worker-{number}", *command, address) for number in range(workers)]
        for worker in started:
            _await(worker, "Successfully registered")
        yield address


def _await(said: Path, pattern: str) -> str:
    """Return what a process says that matches a pattern, as soon as it does."""
    deadline = time.monotonic() + _PATIENCE
    while (found := re.search(pattern, said.read_text())) is None:
        assert time.monotonic() < deadline, said.read_text()
        time.sleep(0.1)
    return found[0]


def on_a_cluster(share: float = 1.0) -> float:
    """Return seconds of a batch on a cluster."""
    with standalone() as master:
        conf = {"spark.executor.memory": "600m", "spark.driver.host": "127.0.0.1", **_QUIET}
        return stateful(share, lambda: session(master, name="benchmark", conf=conf))


def on_a_local_master(share: float = 1.0) -> float:
    """Return seconds of a batch in this process."""
    return stateful(share, lambda: session("local[2]", name="benchmark"))


MEASURE = Measure(
    title="Spark, one micro-batch with windows, standalone cluster",
    unit="s",
    subjects=(
        Subject("two workers", on_a_cluster, spark_ready),
        Subject("local master", on_a_local_master, spark_ready, against="two workers"),
    ),
    more_is_better=False,
    limit=_RUN_LIMIT,
)
