"""Each record is in the results once, whichever process of a pipeline is killed and when."""

import os
import random
import re
import signal
import subprocess
import sys
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psutil
import pytest

pytest.importorskip("pyspark", reason="needs pip install 'callboard[spark]'")

from callboard.commitlog import CommitLog, LogError, LogReader  # noqa: E402
from callboard.pipeline import SparkMissing  # noqa: E402
from callboard.pipeline.java import find_java  # noqa: E402

ROOT = Path(__file__).parents[2]
BATCHES = 10
RECORDS = 2000 * BATCHES

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


@pytest.fixture(autouse=True)
def java():
    try:
        return find_java()
    except SparkMissing as error:
        pytest.skip(str(error))


@pytest.fixture
def log(tmp_path):
    with CommitLog(tmp_path / "log", sync="none") as log:
        log.append_batch(range(RECORDS), topic="/n")
    return str(tmp_path / "log")


@pytest.fixture
def copy(log, tmp_path):
    """Start a pipeline that copies the log."""
    with ExitStack() as stack:

        def start(*death, master="local[2]"):
            places = [log, str(tmp_path / "out"), str(tmp_path / "checkpoint")]
            command = [
                sys.executable,
                "-m",
                "tests.faults.pipeline_copy",
                master,
                *places,
                *death,
            ]
            return stack.enter_context(running(command, tmp_path / "driver.txt"))

        yield start


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


def copied(tmp_path):
    try:
        return LogReader(tmp_path / "out").end
    except LogError:
        return 0


def assert_exact(tmp_path):
    assert [record.payload for record in LogReader(tmp_path / "out")] == list(range(RECORDS))


def test_nothing_is_lost_or_doubled_when_the_sink_or_the_driver_is_killed(
    copy, tmp_path, eventually, figure
):
    seed = random.SystemRandom().randrange(2**32)
    chance = random.Random(seed)
    figure(f"seed {seed}")
    marker = tmp_path / "marker"
    first, second = sorted(chance.sample(range(1, 6), 2))

    for when, batch in (("before", first), ("after", second)):
        marker.touch()
        run = copy(when, str(batch), str(marker))
        assert run.wait(240) == 3
        assert copied(tmp_path) == 2000 * (batch + (when == "after"))

    run = copy()
    eventually(lambda: copied(tmp_path) >= 2000 * (second + 2), 240)
    kill_group(run)
    figure(f"driver killed at {copied(tmp_path):,} of {RECORDS:,} records")

    assert copy().wait(240) == 0
    assert_exact(tmp_path)


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
        "PYSPARK_PYTHON": sys.executable,
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
    cluster, copy, tmp_path, eventually, figure
):
    address, workers = cluster(eventually)
    run = copy(master=address)
    eventually(lambda: copied(tmp_path) >= 2000, 240)
    victims = eventually(lambda: len(found := executors(workers)) == 2 and found, 60)

    random.Random().choice(victims).kill()
    figure(f"executor killed at {copied(tmp_path):,} of {RECORDS:,} records")

    assert run.wait(240) == 0
    assert_exact(tmp_path)
