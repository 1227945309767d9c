"""One session of Spark for all tests of a process, and logs to read."""

import pytest

from callboard.commitlog import Archive, CommitLog
from callboard.pipeline import SparkMissing
from tests.callboard.commitlog.stores import s3_server
from tests.polling import eventually

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


@pytest.fixture(scope="module")
def s3():
    """The storage options of an S3."""
    pytest.importorskip("s3fs")
    pytest.importorskip("moto.server")
    with s3_server() as options:
        yield options


@pytest.fixture
def storage(s3):
    """The same as options of Spark."""
    return {f"storage.{name}": value for name, value in s3.items()}


@pytest.fixture
def archived(tmp_path, s3):
    """A log whose sealed segments are on it."""
    place = Archive(f"s3://logs/{tmp_path.name}/cpu", storage_options=s3)
    with CommitLog(tmp_path / "cpu", sync="none", segment_bytes=3000, archive=place) as log:
        for start in range(0, 400, 40):
            log.append_batch([{"n": n} for n in range(start, start + 40)], topic="/n")
        assert eventually(lambda: log.archives and log.archives[0].end == log.segments[-1].base)
        yield log
