"""Each record is in the results once, whichever process of a pipeline is killed and when.

`CALLBOARD_ROUNDS` says how many rounds there are, `CALLBOARD_SEED` chooses their moments again
as a run has printed them.
"""

import os
import random
import re
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psutil
import pytest

pytest.importorskip("pyspark", reason="needs pip install 'callboard[spark]'")

from callboard.commitlog import CommitLog, LogError, LogReader
from callboard.pipeline import SparkMissing
from callboard.pipeline.java import find_java
from tests.faults import ROUNDS
from tests.faults.log_server import ServedLog

ROOT = Path(__file__).parents[2]
SEED = int(os.environ.get("CALLBOARD_SEED", random.SystemRandom().randrange(2**32)))
ROWS = 2000
"""Records of a micro-batch."""

BATCHES = 12
RECORDS = ROWS * BATCHES

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


@pytest.fixture(autouse=True)
def java():
    try:
        return find_java()
    except SparkMissing as error:
        pytest.skip(str(error))


class Copying:
    """A log, and pipelines that copy it, each in a process of its own."""

    def __init__(self, folder, stack):
        self._folder, self._stack = folder, stack
        self.source = str(folder / "log")
        with CommitLog(folder / "log", sync="none") as log:
            log.append_batch(range(RECORDS), topic="/n")

    def start(self, *death, master="local[2]"):
        outputs = [str(self._folder / name) for name in ("out", "checkpoint")]
        places = [self.source, *outputs]
        command = [sys.executable, "-m", "tests.faults.pipeline_copy", master, *places, *death]
        return self._stack.enter_context(running(command, self._folder / "driver.txt"))

    def done(self):
        """Return how many records were copied, as far as can be seen."""
        try:
            return LogReader(self._folder / "out").end
        except LogError:
            return 0

    def wait_for(self, batch, run, eventually):
        """Wait until a batch is there, or the process has ended; then a part of the next."""
        rows = ROWS * (batch + 1)
        eventually(lambda: self.done() >= rows or run.poll() is not None, 240)

    def assert_exact(self):
        copied = [record.payload for record in LogReader(self._folder / "out")]
        assert copied == list(range(RECORDS))


@pytest.fixture
def copying(java, tmp_path):
    with ExitStack() as stack:
        yield Copying(tmp_path, stack)


@pytest.fixture(params=range(ROUNDS))
def chance(request, figure):
    """Chooses the moments of a round."""
    figure(f"round {request.param + 1} of {ROUNDS}, CALLBOARD_SEED={SEED}")
    return random.Random(f"{SEED} {request.param}")


@contextmanager
def running(command, said, **environment):
    """Run a process in a group of its own, of which nothing is left at the end."""
    with said.open("a") as file:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        kill_group(process)


def kill_group(process):
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def test_nothing_is_lost_or_doubled_when_the_sink_or_the_driver_is_killed(
    copying, chance, tmp_path, eventually, figure
):
    marker = tmp_path / "marker"
    first, second = sorted(chance.sample(range(1, 6), 2))

    for when, batch in (("before", first), ("after", second)):
        marker.touch()
        run = copying.start(when, str(batch), str(marker))
        assert run.wait(240) == 3
        assert copying.done() == ROWS * (batch + (when == "after"))
        figure(f"sink killed {when} it published batch {batch}")

    run = copying.start()
    copying.wait_for(second + 1, run, eventually)
    time.sleep(chance.uniform(0, 0.8))
    assert run.poll() is None
    kill_group(run)
    figure(f"driver killed at {copying.done():,} of {RECORDS:,} records")

    assert copying.start().wait(240) == 0
    copying.assert_exact()


def test_nothing_is_lost_or_doubled_when_the_server_of_the_log_is_killed(
    copying, chance, tmp_path, eventually, figure
):
    pytest.importorskip("pyarrow.flight")
    with ServedLog(tmp_path / "log") as server:
        copying.source = server.address
        run = copying.start()
        for batch in sorted(chance.sample(range(1, 10), 3)):
            copying.wait_for(batch, run, eventually)
            time.sleep(chance.uniform(0, 0.5))
            server.kill()
            figure(f"server of the log killed at {copying.done():,} of {RECORDS:,} records")
            server.start()
        assert run.wait(240) == 0
    copying.assert_exact()


@pytest.fixture
def cluster(java, tmp_path):
    """Start a master and two workers; yields the master's address and both workers."""
    home = Path(__import__("pyspark").__file__).parent
    launcher = [str(home / "bin" / "spark-class")]
    environment = {
        "JAVA_HOME": str(java),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_NO_DAEMONIZE": "1",
        "SPARK_WORKER_DIR": str(tmp_path / "work"),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    deploy = "org.apache.spark.deploy"
    ports = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
    with ExitStack() as stack:

        def start(name, *arguments):
            said = tmp_path / f"{name}.txt"
            command = [*launcher, *arguments]
            return said, stack.enter_context(running(command, said, **environment))

        def found(said, pattern):
            return lambda: re.search(pattern, said.read_text())

        def wait(said, pattern, eventually):
            return eventually(found(said, pattern), 120)[1]

        def make(eventually):
            said, _ = start("master", f"{deploy}.master.Master", *ports)
            address = wait(said, r"(spark://127\.0\.0\.1:\d+)", eventually)
            workers = []
            for name in ("one", "two"):
                limits = ["--cores", "1", "--memory", "1g"]
                said, worker = start(name, f"{deploy}.worker.Worker", *limits, *ports, address)
                wait(said, "(Successfully registered)", eventually)
                workers.append(worker)
            return address, workers

        yield make


def executors(workers):
    """Return the processes that run tasks; a child that just ended is none."""
    found = []
    for worker in workers:
        for child in psutil.Process(worker.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):  # zombies too
                if "CoarseGrainedExecutorBackend" in " ".join(child.cmdline()):
                    found.append(child)
    return found


def test_a_cluster_goes_on_without_an_executor_that_was_killed(
    cluster, copying, chance, eventually, figure
):
    address, workers = cluster(eventually)
    run = copying.start(master=address)
    copying.wait_for(chance.randrange(4), run, eventually)
    victims = eventually(lambda: len(found := executors(workers)) == 2 and found, 60)
    time.sleep(chance.uniform(0, 0.8))

    chance.choice(victims).kill()
    figure(f"executor killed at {copying.done():,} of {RECORDS:,} records")

    assert run.wait(240) == 0
    copying.assert_exact()
