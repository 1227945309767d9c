"""Spark sessions that read and write logs, here or on a cluster."""

import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from callboard.pipeline.errors import InvalidSetting, PipelineError, SparkMissing
from callboard.pipeline.java import find_java
from callboard.pipeline.process.fork_server import start_python

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ROOT: Final = Path(__file__).parents[2]
_LOGGING: Final = Path(__file__).with_name("log4j2.properties")
_ROCKSDB: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_REGISTERED: Final = "callboard.format"

_STREAMING: Final = "org.apache.spark.sql.execution.streaming"
_CHECKPOINTS: Final = f"{_STREAMING}.checkpointing.FileSystemBasedCheckpointFileManager"
_CHECKPOINT_FILES: Final = "spark.sql.streaming.checkpointFileManagerClass"

_ALWAYS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
    # transformWithState runs on no other store of states.
    "spark.sql.streaming.stateStore.providerClass": _ROCKSDB,
    "spark.sql.streaming.stopTimeout": "30s",
    # A query asks its log for more as soon as it is done.
    "spark.sql.streaming.pollingDelay": "10ms",
    "spark.python.daemon.module": "callboard.pipeline.process.worker_daemon",
}

_WAREHOUSE: Final = "spark.sql.warehouse.dir"
_JAVA: Final = "spark.driver.extraJavaOptions"


def session(
    master: str = "local[*]",
    *,
    name: str = "callboard",
    conf: Mapping[str, str] | None = None,
) -> "SparkSession":
    """Return a Spark session that knows the format "callboard"; one for each process.

    Args:
        master: `local[2]` is two threads in this process, `spark://HOST:7077` a cluster.
        name: What Spark shows.
        conf: Spark's settings; they go before those that are made here.

    Raises:
        SparkMissing: pyspark, or a Java that runs it, is not installed.
        InvalidSetting: Spark takes no such master.
        PipelineError: Java ended before Spark was there.
    """
    try:
        from pyspark.errors import PySparkRuntimeError
        from pyspark.sql import SparkSession
    except ImportError:
        what = "the pipeline needs Spark; install it with: pip install 'callboard[spark]'"
        raise SparkMissing(what) from None
    if not master.startswith(("local", "spark://", "yarn", "k8s://")):
        what = f"master {master!r} is unknown to Spark; give local[2] or spark://HOST:7077"
        raise InvalidSetting(what)
    _prepare_environment(is_local=master.startswith("local"))
    settings = {**_ALWAYS, **_settings_of(master), **(conf or {})}
    settings.setdefault(_WAREHOUSE, str(Path(tempfile.gettempdir(), "spark-warehouse")))
    logs = f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}"
    settings[_JAVA] = f"{logs} {settings.get(_JAVA, '')}".rstrip()
    builder = SparkSession.builder.master(master).appName(name)
    for key, value in settings.items():
        builder = builder.config(key, value)
    try:
        spark = builder.getOrCreate()
    except PySparkRuntimeError:
        home = os.environ["JAVA_HOME"]
        what = f"the Java in {home} ended before Spark was there; see what it said"
        raise PipelineError(what) from None
    if master.startswith("local") and _CHECKPOINT_FILES not in settings:
        _write_checkpoints_quickly(spark)
    register(spark)
    return spark


def register(spark: "SparkSession") -> None:
    """Teach a session that was made elsewhere the format "callboard"."""
    from callboard.pipeline.spark.format import CallboardFormat

    if spark.conf.get(_REGISTERED, "") != "yes":  # Spark warns of a second time
        spark.dataSource.register(CallboardFormat)
        spark.conf.set(_REGISTERED, "yes")


def default_master() -> str:
    """Return the master of a machine: a thread for each processor."""
    return f"local[{os.cpu_count() or 1}]"


def _write_checkpoints_quickly(spark: "SparkSession") -> None:
    """Spare half the time of a small micro-batch, which goes by in writing checkpoints.

    For each file Spark's usual way runs `chmod` and `readlink`, some of them twice: once more
    for a file with a checksum. This way runs one `chmod`. What the checksum would find in a
    file of a few bytes, Spark finds by reading it, and of states it keeps checksums of its own.
    """
    java, context = spark._jvm, spark._jsc  # noqa: SLF001  # there is no other way
    try:
        java.java.lang.Class.forName(_CHECKPOINTS)
    except Exception:  # noqa: BLE001  # an error of Java: this version of Spark has no such class
        return
    spark.conf.set(_CHECKPOINT_FILES, _CHECKPOINTS)
    files = java.org.apache.hadoop.fs.FileSystem
    files.getLocal(context.hadoopConfiguration()).setWriteChecksum(False)


def _prepare_environment(*, is_local: bool) -> None:
    """Let Spark find Java, and its workers this very Python with all that is installed."""
    os.environ["JAVA_HOME"] = str(find_java())
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    folders = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if str(_ROOT) not in folders:  # where callboard is used in place, not installed
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_ROOT), *folders]))
    if is_local and sys.platform == "linux":
        seed = os.environ.get("PYTHONHASHSEED", "0")
        os.environ["PYSPARK_PYTHON"] = str(start_python(seed))


def _settings_of(master: str) -> dict[str, str]:
    """Return Spark's settings for a local master; none for a cluster."""
    if not master.startswith("local"):
        return {}
    inside = master.partition("[")[2].rstrip("]").split(",")[0]
    threads = int(inside) if inside.isdecimal() else os.cpu_count() or 1
    return {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": str(max(2, min(threads, 8))),
        "spark.default.parallelism": str(threads),
    }
