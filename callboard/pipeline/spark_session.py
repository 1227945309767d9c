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

#: Defaults for queries over logs. A setting of the user, also from `spark-submit` or
#: `spark-defaults.conf`, takes precedence.
_QUERIES: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
    # transformWithState works with no other state store.
    "spark.sql.streaming.stateStore.providerClass": _ROCKSDB,
    "spark.sql.streaming.stopTimeout": "30s",
    # A query asks its log for more records as soon as a batch is finished.
    "spark.sql.streaming.pollingDelay": "10ms",
}

#: Settings before the start of a local Spark.
_LOCAL: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}

_WAREHOUSE: Final = "spark.sql.warehouse.dir"
#: Environment variable with options for the driver's Java; the settings take precedence.
_JAVA: Final = "SPARK_SUBMIT_OPTS"
_DAEMON: Final = "spark.python.daemon.module"
_PYTHON: Final = "spark.pyspark.python"
_PARTITIONS: Final = "spark.sql.shuffle.partitions"
_MASTERS: Final = ("local", "spark://", "yarn", "k8s://")

#: The first version of Spark whose Python sources can limit a micro-batch.
_OLDEST: Final = (4, 2)

#: Setting and environment variable that select Spark Connect.
_REMOTE: Final = ("spark.remote", "SPARK_REMOTE")


def session(
    master: str = "",
    *,
    name: str = "callboard",
    conf: Mapping[str, str] | None = None,
    shortcuts: bool = False,
) -> "SparkSession":
    """Return a Spark session that knows the format "callboard"; there is one per process.

    Args:
        master: `local[2]` for two threads in this process; `spark://HOST:7077`, `yarn` or
            `k8s://…` for a cluster. By default the master of `spark-submit`, else `local[*]`.
        name: Name of the application in Spark.
        conf: Spark's settings; they take precedence over our own.
        shortcuts: Whether to speed up the checkpoints of a local master by relying on Spark's
            internals: with fewer file operations.

    Raises:
        SparkMissing: pyspark, or a Java that can run it, is not installed.
        InvalidSetting: Spark does not support the master.
        PipelineError: Java ended during the start, or executors lack callboard.
    """
    try:
        import pyspark
        from pyspark.errors import PySparkRuntimeError
        from pyspark.sql import SparkSession
    except ImportError:
        msg = "the pipeline needs Spark; install it with: pip install 'callboard[spark]'"
        raise SparkMissing(msg) from None
    _check_version(pyspark.__version__)
    is_submitted = "PYSPARK_GATEWAY_PORT" in os.environ  # by spark-submit, which has a Java
    _refuse_connect(master, conf or {})
    master = master or ("" if is_submitted else "local[*]")
    if master and not master.startswith(_MASTERS):
        msg = f"Spark does not support the master {master!r}; use local[2] or spark://HOST:7077"
        raise InvalidSetting(msg)
    is_here = bool(master) and is_local(master)
    settings = {**(_LOCAL if is_here else {}), **(conf or {})}
    if is_here:
        settings.setdefault(_WAREHOUSE, str(Path(tempfile.gettempdir(), "spark-warehouse")))
    settings.setdefault(_DAEMON, "callboard.pipeline.process.worker_daemon")
    builder = SparkSession.builder.appName(name)
    for key, value in (({"spark.master": master} if master else {}) | settings).items():
        builder = builder.config(key, value)
    java = None if is_submitted else find_java()
    with starting(java, settings.get(_PYTHON, ""), here=is_here):
        try:
            if java is not None:
                _start_java(name, settings | ({"spark.master": master} if master else {}))
            spark = builder.getOrCreate()
        except PySparkRuntimeError:
            msg = f"the Java in {java} ended before Spark was ready; see its output"
            raise PipelineError(msg) from None
    if not _is_registered(spark):
        try:
            register(spark)
        except PipelineError:
            spark.stop()
            raise
        _set_defaults(spark)
    if shortcuts and is_here and _CHECKPOINT_FILES not in settings:
        _write_checkpoints_quickly(spark)
    return spark


def _start_java(name: str, settings: Mapping[str, str]) -> None:
    """Start Java in a session of its own, which signals to this process's group do not reach.

    Otherwise such a signal, as from Airflow, would end Java while the driver is about to end
    its queries in order. Java ends when this process closes its input, also by being killed.
    """
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    if SparkContext._gateway is not None:  # noqa: SLF001  # Java runs already
        return
    conf = SparkConf().setAppName(name)
    for key, value in settings.items():
        conf.set(key, value)
    gateway = launch_gateway(conf, {"start_new_session": True})
    SparkContext._ensure_initialized(gateway=gateway, conf=conf)  # noqa: SLF001


def _check_version(version: str) -> None:
    """Raise `SparkMissing` if this version of Spark is too old."""
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
    if numbers < _OLDEST:
        oldest = ".".join(map(str, _OLDEST))
        msg = (
            f"Spark {version} is too old for logs as streams, which need {oldest} or newer;"
            " install it with: pip install 'callboard[spark]'"
        )
        raise SparkMissing(msg)


def register(spark: "SparkSession") -> None:
    """Add the format "callboard" to a session that was created elsewhere.

    Raises:
        InvalidSetting: the session uses Spark Connect.
    """
    from callboard.pipeline.spark.format import CallboardFormat

    if type(spark).__module__.startswith("pyspark.sql.connect"):
        _refuse()
    if _is_registered(spark):  # Spark warns about a second registration
        return
    context = spark.sparkContext
    context.environment |= {MASTER: context.master, TASKS: str(count_tasks(spark))}
    spark.dataSource.register(CallboardFormat)
    spark.conf.set(_REGISTERED, "yes")


def _is_registered(spark: "SparkSession") -> bool:
    """Return whether a session has the format."""
    return bool(spark.conf.get(_REGISTERED, "") == "yes")


def _set_defaults(spark: "SparkSession") -> None:
    """Apply our defaults for settings that the user has not set."""
    user_settings = spark.conf.getAll
    for key, value in _QUERIES.items():
        if key not in user_settings:
            spark.conf.set(key, value)
    if _PARTITIONS not in user_settings:
        context = spark.sparkContext
        partitions = choose_partitions(context.master, int(context.environment[TASKS]))
        spark.conf.set(_PARTITIONS, str(partitions))


def _refuse_connect(master: str, conf: Mapping[str, Any]) -> None:
    """Raise `InvalidSetting` if Spark would be used over Spark Connect."""
    setting, variable = _REMOTE
    wants = conf.get("spark.api.mode", os.environ.get("SPARK_API_MODE", "")) == "connect"
    if wants or master.startswith("sc://") or setting in conf or variable in os.environ:
        _refuse()


def _refuse() -> NoReturn:
    """Raise the error for Spark Connect."""
    msg = (
        "Spark Connect (sc://…, spark.remote) cannot run pipelines: they need their own driver;"
        " pass the master of the cluster, like spark://HOST:7077, and unset SPARK_REMOTE"
    )
    raise InvalidSetting(msg)


def _write_checkpoints_quickly(spark: "SparkSession") -> None:
    """Halve the time of a small micro-batch, most of which is checkpoint files.

    For each file Spark's default runs `chmod` and `readlink`, some of them twice, and all again
    for a file with a checksum. This runs one `chmod`. The checksum is not needed: Spark notices
    damage in such a small file when it parses it, and has its own checksums for states.
    """
    java, context = spark._jvm, spark._jsc  # noqa: SLF001  # not accessible otherwise
    try:
        java.java.lang.Class.forName(_CHECKPOINTS)
    except Exception:  # noqa: BLE001  # a Java error: this version of Spark lacks the class
        return
    spark.conf.set(_CHECKPOINT_FILES, _CHECKPOINTS)
    files = java.org.apache.hadoop.fs.FileSystem
    files.getLocal(context.hadoopConfiguration()).setWriteChecksum(False)


@contextmanager
def starting(java: Path | None, python: str, *, here: bool) -> Iterator[None]:
    """Prepare the environment in which Spark starts: Java, and Python for the driver.

    The driver uses this Python, and so do the workers of a local master. Executors on other
    hosts use the Python that the user names, which every host must have, else `python3` from
    their path.
    """
    path, folders = os.environ.get("PATH", ""), os.environ.get("PYTHONPATH", "")
    logs = f"-Dlog4j2.configurationFile={_LOGGING.as_uri()} {os.environ.get(_JAVA, '')}"
    changed = {"PYSPARK_DRIVER_PYTHON": sys.executable, _JAVA: logs.rstrip()}
    if java is not None:
        changed["JAVA_HOME"] = str(java)
    if str(_ROOT) not in folders.split(os.pathsep):  # callboard may be used uninstalled
        changed["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_ROOT), folders]))
    if python:
        changed["PYSPARK_PYTHON"] = python
    elif "PYSPARK_PYTHON" in os.environ:
        pass
    elif not here:
        own_python = Path(sys.executable).with_name("python3")
        if shutil.which("python3") != str(own_python):
            changed["PATH"] = os.pathsep.join([str(own_python.parent), path])
    elif sys.platform == "linux":
        # Forked from a process that has imported everything: on a busy machine, a new Python
        # would not be ready within the ten seconds that Spark waits for it to connect.
        changed["PYSPARK_PYTHON"] = str(start_python(os.environ.get("PYTHONHASHSEED", "0")))
    else:
        changed["PYSPARK_PYTHON"] = sys.executable
    previous = {name: os.environ.get(name) for name in changed}
    os.environ.update(changed)
    try:
        yield
    finally:
        for name, value in previous.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
