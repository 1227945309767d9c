"""A micro-batch with windows on a standalone cluster of two workers, beside a local master.

Both run plain Spark, without our shortcuts, on two tasks at a time. Master, workers and driver
are processes of this machine.
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

        def start(name: str, pattern: str, *command: str) -> str:
            said = folder / name
            with said.open("w") as file:
                process = subprocess.Popen(
                    [launcher, *command], env=os.environ | environment, stdout=file, stderr=file
                )
            stack.callback(process.wait)
            stack.callback(process.terminate)
            deadline = time.monotonic() + _PATIENCE
            while (found := re.search(pattern, said.read_text())) is None:
                assert time.monotonic() < deadline, said.read_text()
                time.sleep(0.1)
            return found[0]

        address = start(
            "master", r"spark://127\.0\.0\.1:\d+", f"{_DEPLOY}.master.Master", *_ADDRESS
        )
        for number in range(workers):
            command = [f"{_DEPLOY}.worker.Worker", "--cores", "1", "--memory", "1g", *_ADDRESS]
            start(f"worker-{number}", "Successfully registered", *command, address)
        yield address


def on_a_cluster(share: float = 1.0) -> float:
    """Return seconds of a batch on a cluster."""
    with standalone() as master:
        conf = {"spark.executor.memory": "600m", "spark.driver.host": "127.0.0.1"}
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
)
