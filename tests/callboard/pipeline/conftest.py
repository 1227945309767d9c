"""One session of Spark for all tests of a process, and logs to read."""

import pytest

from callboard.commitlog import CommitLog
from callboard.pipeline import SparkMissing

#: Quick to start rather than quick: these tests wait for Spark, not for Java's compiler.
SETTINGS = {
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    # As on a cluster: a file system that is none of Python's.
    "spark.hadoop.fs.viewfs.mounttable.cluster.link./files": "file:///",
}


@pytest.fixture
def spark():
    from callboard.pipeline import session

    try:
        return session(master="local[2]", conf=SETTINGS, shortcuts=True)
    except SparkMissing as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session", autouse=True)
def _stop_spark():
    yield
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        return
    active = SparkSession.getActiveSession()
    if active is not None:
        active.stop()


@pytest.fixture
def folder(tmp_path):
    return str(tmp_path / "metrics")


@pytest.fixture
def fill(folder):
    """Append records to the log: a run of payloads, with one topic or one for each."""

    def append(payloads, topic="/cpu", **rest):
        with CommitLog(folder, sync="none") as log:
            return log.append_batch(payloads, topic=topic, **rest)

    return append
