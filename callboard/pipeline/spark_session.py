"""Spark sessions that read and write logs, here or on a cluster."""

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from callboard.pipeline.errors import InvalidSetting, PipelineError, SparkMissing
from callboard.pipeline.java import find_java
from callboard.pipeline.process.fork_server import start_python
from callboard.pipeline.spark.cluster import (
    MASTER,
    TASKS,
    choose_partitions,
    count_tasks,
    is_local,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ROOT: Final = Path(__file__).parents[2]
_LOGGING: Final = Path(__file__).with_name("log4j2.properties")
_ROCKSDB: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_REGISTERED: Final = "callboard.format"

_STREAMING: Final = "org.apache.spark.sql.execution.streaming"
_CHECKPOINTS: Final = f"{_STREAMING}.checkpointing.FileSystemBasedCheckpointFileManager"
_CHECKPOINT_FILES: Final = "spark.sql.streaming.checkpointFileManagerClass"

#: What queries over logs go well with; each unless the user has set it, also by `spark-submit`
#: or in `spark-defaults.conf`.
_QUERIES: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
    # transformWithState runs on no other store of states.
    "spark.sql.streaming.stateStore.providerClass": _ROCKSDB,
    "spark.sql.streaming.stopTimeout": "30s",
    # A query asks its log for more as soon as it is done.
    "spark.sql.streaming.pollingDelay": "10ms",
}

#: What Spark has to know before it starts, where all of it is in this process.
_LOCAL: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}

_WAREHOUSE: Final = "spark.sql.warehouse.dir"
#: A variable with options for the driver's Java; those of the settings go before them.
_JAVA: Final = "SPARK_SUBMIT_OPTS"
_DAEMON: Final = "spark.python.daemon.module"
_PYTHON: Final = "spark.pyspark.python"
_PARTITIONS: Final = "spark.sql.shuffle.partitions"
_MASTERS: Final = ("local", "spark://", "yarn", "k8s://")

#: Spark Connect, by name of its setting and of its variable.
_REMOTE: Final = ("spark.remote", "SPARK_REMOTE")


def session(
    master: str = "",
    *,
    name: str = "callboard",
    conf: Mapping[str, str] | None = None,
    shortcuts: bool = False,
) -> "SparkSession":
    """Return a Spark session that knows the format "callboard"; one for each process.

    Args:
        master: `local[2]` is two threads in this process, `spark://HOST:7077`, `yarn` or
            `k8s://…` a cluster. By default it is what `spark-submit` was told, else `local[*]`.
        name: What Spark shows.
        conf: Spark's settings; they go before those that are made here.
        shortcuts: Whether a local master is quicker by what leans on Spark's insides: processes
            that are forks of a prepared one, and checkpoints that are written with less ado.

    Raises:
        SparkMissing: pyspark, or a Java that runs it, is not installed.
        InvalidSetting: Spark takes no such master.
        PipelineError: Java ended before Spark was there, or executors lack callboard.
    """
    try:
        from pyspark.errors import PySparkRuntimeError
        from pyspark.sql import SparkSession
    except ImportError:
        what = "the pipeline needs Spark; install it with: pip install 'callboard[spark]'"
        raise SparkMissing(what) from None
    is_submitted = "PYSPARK_GATEWAY_PORT" in os.environ  # by spark-submit, which has a Java
    _refuse_connect(master, conf or {})
    master = master or ("" if is_submitted else "local[*]")
    if master and not master.startswith(_MASTERS):
        what = f"master {master!r} is unknown to Spark; give local[2] or spark://HOST:7077"
        raise InvalidSetting(what)
    here = bool(master) and is_local(master)
    settings = {**(_LOCAL if here else {}), **(conf or {})}
    if here:
        settings.setdefault(_WAREHOUSE, str(Path(tempfile.gettempdir(), "spark-warehouse")))
    settings.setdefault(_DAEMON, "callboard.pipeline.process.worker_daemon")
    builder = SparkSession.builder.appName(name)
    for key, value in (({"spark.master": master} if master else {}) | settings).items():
        builder = builder.config(key, value)
    java = None if is_submitted else find_java()
    with starting(java, settings.get(_PYTHON, ""), here=here, shortcuts=shortcuts):
        try:
            spark = builder.getOrCreate()
        except PySparkRuntimeError:
            what = f"the Java in {java} ended before Spark was there; see what it said"
            raise PipelineError(what) from None
    if not _is_registered(spark):
        try:
            register(spark)
        except PipelineError:
            spark.stop()
            raise
        _set_defaults(spark)
    if shortcuts and here and _CHECKPOINT_FILES not in settings:
        _write_checkpoints_quickly(spark)
    return spark


def register(spark: "SparkSession") -> None:
    """Teach a session that was made elsewhere the format "callboard".

    Raises:
        InvalidSetting: the session is one of Spark Connect.
    """
    from callboard.pipeline.spark.format import CallboardFormat

    if type(spark).__module__.startswith("pyspark.sql.connect"):
        _refuse()
    if _is_registered(spark):  # Spark warns of a second time
        return
    context = spark.sparkContext
    context.environment |= {MASTER: context.master, TASKS: str(count_tasks(spark))}
    spark.dataSource.register(CallboardFormat)
    spark.conf.set(_REGISTERED, "yes")


def _is_registered(spark: "SparkSession") -> bool:
    """Return whether a session knows the format."""
    return bool(spark.conf.get(_REGISTERED, "") == "yes")


def _set_defaults(spark: "SparkSession") -> None:
    """Make the settings that the user has not made."""
    known = spark.conf.getAll
    for key, value in _QUERIES.items():
        if key not in known:
            spark.conf.set(key, value)
    if _PARTITIONS not in known:
        context = spark.sparkContext
        partitions = choose_partitions(context.master, int(context.environment[TASKS]))
        spark.conf.set(_PARTITIONS, str(partitions))


def _refuse_connect(master: str, conf: Mapping[str, Any]) -> None:
    """Raise `InvalidSetting` where Spark would be reached by Spark Connect."""
    setting, variable = _REMOTE
    wants = conf.get("spark.api.mode", os.environ.get("SPARK_API_MODE", "")) == "connect"
    if wants or master.startswith("sc://") or setting in conf or variable in os.environ:
        _refuse()


def _refuse() -> NoReturn:
    """Raise what Spark Connect gets."""
    what = (
        "Spark Connect (sc://…, spark.remote) is not for pipelines: they need a driver of their"
        " own; give the master of the cluster, like spark://HOST:7077, and unset SPARK_REMOTE"
    )
    raise InvalidSetting(what)


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


@contextmanager
def starting(java: Path | None, python: str, *, here: bool, shortcuts: bool) -> Iterator[None]:
    """Let Spark, while it starts, find Java, and as Python of the driver this very one.

    On a local master its workers are this Python too. Executors elsewhere start what the user
    names, which every host has to have, else the `python3` of their own path.
    """
    path, folders = os.environ.get("PATH", ""), os.environ.get("PYTHONPATH", "")
    logs = f"-Dlog4j2.configurationFile={_LOGGING.as_uri()} {os.environ.get(_JAVA, '')}"
    changed = {"PYSPARK_DRIVER_PYTHON": sys.executable, _JAVA: logs.rstrip()}
    if java is not None:
        changed["JAVA_HOME"] = str(java)
    if str(_ROOT) not in folders.split(os.pathsep):  # where callboard is used in place
        changed["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_ROOT), folders]))
    if python:
        changed["PYSPARK_PYTHON"] = python
    elif "PYSPARK_PYTHON" in os.environ:
        pass
    elif not here:
        if shutil.which("python3") != str(mine := Path(sys.executable).with_name("python3")):
            changed["PATH"] = os.pathsep.join([str(mine.parent), path])
    elif shortcuts and sys.platform == "linux":
        changed["PYSPARK_PYTHON"] = str(start_python(os.environ.get("PYTHONHASHSEED", "0")))
    else:
        changed["PYSPARK_PYTHON"] = sys.executable
    before = {name: os.environ.get(name) for name in changed}
    os.environ.update(changed)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
