"""Each record is in the results once, whichever process of a pipeline is killed and when.

`CALLBOARD_ROUNDS` says how many rounds there are, `CALLBOARD_SEED` chooses their moments again
as a run has printed them.
"""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

import psutil
import pytest

pytest.importorskip("pyspark", reason="needs pip install 'callboard[spark]'")

from callboard.commitlog import CommitLog, LogError, LogReader
from callboard.pipeline import SparkMissing
from callboard.pipeline.java import find_java
from tests.faults import ROUNDS
from tests.faults.log_server import ServedLog
from tests.faults.quick_spark import JAVA, installed, make_home

ROOT = Path(__file__).parents[2]
SEED = int(os.environ.get("CALLBOARD_SEED", random.SystemRandom().randrange(2**32)))
ROWS = 2000
"""Records of a micro-batch."""

BATCHES = 12
RECORDS = ROWS * BATCHES
PATIENCE = 240.0
"""Seconds for what takes some on a quiet machine."""

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


@pytest.fixture(autouse=True, scope="module")
def java():
    try:
        return find_java()
    except SparkMissing as error:
        pytest.skip(str(error))


class Driver:
    """A process that copies logs, one after the other, and the next one when it was killed."""

    def __init__(self, said, master="local[2]"):
        self._said, self._stack, self._pool = said, ExitStack(), ThreadPoolExecutor(1)
        self._home = make_home(said.with_name(f"{said.stem}-spark"), installed())
        self._command = [sys.executable, "-m", "tests.faults.pipeline_copy", master]
        self._process = None

    def copy(self, **query):
        """Begin to copy; returns what will tell why it failed, or ""; None if it was killed."""
        if self._process is None:
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            spark = {"SPARK_HOME": str(self._home)}
            run = running(self._command, self._said, pipes, **spark)
            self._process = self._stack.enter_context(run)
        print(json.dumps(query), file=self._process.stdin, flush=True)
        return self._pool.submit(self._answer, self._process)

    @staticmethod
    def _answer(process):
        line = process.stdout.readline()
        return json.loads(line) if line else None

    def kill(self):
        """Kill the process and its Java."""
        self._stack.close()
        self._process = None

    def close(self):
        self.kill()
        self._pool.shutdown()


class Copying:
    """A log, and pipelines that copy it with a driver."""

    def __init__(self, folder, driver):
        self._folder, self._driver, self._run = folder, driver, None
        self.source = str(folder / "log")
        with CommitLog(folder / "log", sync="none") as log:
            log.append_batch(range(RECORDS), topic="/n")

    def start(self, **death):
        """Copy what is not copied yet; returns what will tell how that ended."""
        places = {name: str(self._folder / name) for name in ("out", "checkpoint")}
        self._run = self._driver.copy(log=self.source, **places, **death)
        return self._run

    def done(self):
        """Return how many records were copied, as far as can be seen."""
        try:
            return LogReader(self._folder / "out").end
        except LogError:
            return 0

    def wait_for(self, batch, run, eventually):
        """Wait until a batch is there, or the pipeline has ended."""
        rows = ROWS * (batch + 1)
        eventually(lambda: self.done() >= rows or run.done(), PATIENCE)

    def assert_exact(self):
        copied = [record.payload for record in LogReader(self._folder / "out")]
        assert copied == list(range(RECORDS))

    def end(self):
        """Leave nothing to a driver that another test goes on with."""
        if self._run is not None and not self._run.done():
            self._driver.kill()


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    """The driver of a local master: tests share it, as long as it lives."""
    made = Driver(tmp_path_factory.mktemp("driver") / "driver.txt")
    yield made
    made.close()


@pytest.fixture
def copying(java, driver, tmp_path):
    made = Copying(tmp_path, driver)
    yield made
    made.end()


@pytest.fixture(params=range(ROUNDS))
def chance(request, figure):
    """Chooses the moments of a round."""
    figure(f"round {request.param + 1} of {ROUNDS}, CALLBOARD_SEED={SEED}")
    return random.Random(f"{SEED} {request.param}")


@contextmanager
def running(command, said, pipes=None, **environment):
    """Run a process in a group of its own, of which nothing is left at the end."""
    with (
        said.open("a") as file,
        subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), **JAVA, **environment},
            stderr=file,
            start_new_session=True,
            **(pipes or {"stdout": file}),
        ) as process,
    ):
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
    copying, driver, chance, eventually, figure
):
    first, second = sorted(chance.sample(range(1, 6), 2))

    for when, batch in (("before", first), ("after", second)):
        assert copying.start(death=(when, batch)).result(PATIENCE)
        assert copying.done() == ROWS * (batch + (when == "after"))
        figure(f"sink killed {when} it published batch {batch}")

    run = copying.start()
    copying.wait_for(second + 1, run, eventually)
    time.sleep(chance.uniform(0, 0.8))
    assert not run.done()
    driver.kill()
    assert run.result(PATIENCE) is None
    figure(f"driver killed at {copying.done():,} of {RECORDS:,} records")

    assert copying.start().result(PATIENCE) == ""
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
        assert run.result(PATIENCE) == ""
    copying.assert_exact()


@pytest.fixture
def cluster(java, tmp_path, eventually):
    """Start a master and two workers; yields the master's address and both workers."""
    deploy = "org.apache.spark.deploy"
    home = make_home(tmp_path / "spark", installed())
    environment = {
        "JAVA_HOME": str(java),
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_NO_DAEMONIZE": "1",
        "SPARK_WORKER_DIR": str(tmp_path / "work"),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    ports = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
    with ExitStack() as stack:

        def start(name, *arguments):
            said = tmp_path / f"{name}.txt"
            command = [str(home / "bin" / "spark-class"), f"{deploy}.{arguments[0]}"]
            run = running([*command, *ports, *arguments[1:]], said, **environment)
            return said, stack.enter_context(run)

        said, _ = start("master", "master.Master")
        leads = r"Starting Spark master at (spark://\S+)(?s:.*)elected leader"
        address = eventually(lambda: re.search(leads, said.read_text()), PATIENCE)[1]
        limits = ["--cores", "1", "--memory", "1g"]
        names = ("one", "two")
        yield address, [start(name, "worker.Worker", *limits, address)[1] for name in names]


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
    cluster, chance, tmp_path, eventually, figure
):
    address, workers = cluster
    with closing(Driver(tmp_path / "driver.txt", address)) as driver:
        copying = Copying(tmp_path, driver)
        run = copying.start()
        copying.wait_for(chance.randrange(4), run, eventually)
        victims = eventually(lambda: len(found := executors(workers)) == 2 and found, PATIENCE)
        time.sleep(chance.uniform(0, 0.8))

        chance.choice(victims).kill()
        figure(f"executor killed at {copying.done():,} of {RECORDS:,} records")

        assert run.result(PATIENCE) == ""
        copying.assert_exact()
