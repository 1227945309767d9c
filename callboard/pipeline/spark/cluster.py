"""Facts about Spark's cluster for its worker processes: the master, and the number of tasks.

Sources plan and sinks publish outside the driver process, without a session. So the session
puts these facts into environment variables, which Spark passes to its Python processes.
"""

import os
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from callboard.backoff import is_reached
from callboard.pipeline.errors import InvalidSetting, PipelineError
from callboard.support.slots import TASK_MODULES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Hosts that have the folder to write, under the same path: all, or only the driver.
SHARED: Final = "shared"
DRIVER: Final = "driver"

MASTER: Final = "CALLBOARD_SPARK_MASTER"
TASKS: Final = "CALLBOARD_SPARK_TASKS"

#: Lines of Spark's error texts that name the cause.
_TELLING: Final = re.compile(r"ModuleNotFound|ImportError|Cannot run program|VERSION_MISMATCH")

_MOST_PARTITIONS: Final = 200
_MOST_LOCAL: Final = 8
#: Seconds without a new executor after which all have started, and the time limit.
_QUIET: Final = 1.0
_QUIET_LIMIT: Final = 10.0


def is_local(master: str | None = None) -> bool:
    """Return whether a master (by default this process's) runs on one host."""
    return (master or os.environ.get(MASTER) or "local").startswith("local")


def check_folder(path: str, step: str) -> None:
    """Refuse a folder that each host would have for itself.

    Raises:
        InvalidSetting: the master has other hosts; `step` tells the user what to do.
    """
    if "://" not in path and not is_local():
        master = os.environ[MASTER]
        msg = f"{path} is a folder, but master {master} has other hosts; {step}"
        raise InvalidSetting(msg)


def tasks_at_once() -> int:
    """Return how many tasks this process's cluster runs in parallel."""
    text = os.environ.get(TASKS, "")
    return int(text) if text.isdecimal() and int(text) else os.cpu_count() or 1


def count_tasks(spark: "SparkSession") -> int:
    """Return how many tasks a session's cluster runs in parallel.

    It waits for the first executor. The size in the settings takes precedence over the current
    one.

    Raises:
        PipelineError: executors cannot run our tasks.
    """
    context = spark.sparkContext
    conf = context.getConf()
    if not is_local(context.master):
        _try_executor(context)
    task_count = conf.get("spark.default.parallelism") or conf.get("spark.cores.max")
    if task_count is None and not is_local(context.master):
        executors = conf.get("spark.dynamicAllocation.maxExecutors") or conf.get(
            "spark.executor.instances"
        )
        if executors is not None:
            task_count = str(int(executors) * int(conf.get("spark.executor.cores") or 1))
        else:
            _await_executors(lambda: context.defaultParallelism)
    return int(task_count) if task_count else context.defaultParallelism


def _try_executor(context: Any) -> None:
    """Run a task with our imports, as soon as there is an executor."""
    try:
        context.parallelize(range(1), 1).map(_import_ours).count()
    except Exception as error:  # noqa: BLE001  # Java's errors have many types
        lines = [line.strip() for line in str(error).splitlines()]
        causes = [line for line in lines if _TELLING.search(line)] or lines
        msg = (
            f"executors of {context.master} cannot run callboard's tasks ({causes[0]}); install"
            " callboard[spark] in the Python that PYSPARK_PYTHON names there, by default the"
            " python3 of their path"
        )
        raise PipelineError(msg) from None


def _import_ours(_: int) -> None:
    """Import the modules that tasks need."""
    TASK_MODULES.load("spark")


def _await_executors(count: Callable[[], int]) -> None:
    """Wait for the executors that start together with the first one."""
    counts = [-1]

    def is_steady() -> bool:
        counts.append(count())
        return counts[-1] == counts[-2]

    is_reached(is_steady, _QUIET, _QUIET_LIMIT)


def choose_partitions(master: str, tasks: int) -> int:
    """Return the number of partitions of a query's state.

    Each partition of a stateful operator is a store that is opened, written and committed in
    every micro-batch. With Spark's 200 on a few processors, a batch would do nothing else.
    """
    return max(2, min(tasks, _MOST_LOCAL if is_local(master) else _MOST_PARTITIONS))
