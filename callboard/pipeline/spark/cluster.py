"""What the processes of Spark know of the cluster: its master, and how many tasks it runs.

Sources plan and sinks publish in processes beside the driver, which have no session to ask. The
session leaves word for them in variables, which Spark hands to each process of Python.
"""

import os
import re
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from callboard.pipeline.errors import InvalidSetting, PipelineError
from callboard.support.slots import TASK_MODULES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Who has the folders that are written, under the same path: all hosts, or the driver alone.
SHARED: Final = "shared"
DRIVER: Final = "driver"

MASTER: Final = "CALLBOARD_SPARK_MASTER"
TASKS: Final = "CALLBOARD_SPARK_TASKS"

#: What of Spark's pages tells why a task could not run.
_TELLING: Final = re.compile(r"ModuleNotFound|ImportError|Cannot run program|VERSION_MISMATCH")

_MOST_PARTITIONS: Final = 200
_MOST_LOCAL: Final = 8
#: Seconds in which no executor comes any more, and how often that is looked at.
_QUIET: Final = 1.0
_LOOKS: Final = 10


def is_local(master: str | None = None) -> bool:
    """Return whether a master, by default that of this process, has no hosts of its own."""
    return (master or os.environ.get(MASTER) or "local").startswith("local")


def check_folder(path: str, step: str) -> None:
    """See that tasks do not fill a folder that each host has for itself.

    Raises:
        InvalidSetting: that would be so; `step` says what to do.
    """
    if "://" not in path and not is_local():
        master = os.environ[MASTER]
        what = f"{path} is a folder, and master {master} has hosts of its own; {step}"
        raise InvalidSetting(what)


def tasks_at_once() -> int:
    """Return how many tasks the cluster of this process runs at a time."""
    told = os.environ.get(TASKS, "")
    return int(told) if told.isdecimal() and int(told) else os.cpu_count() or 1


def count_tasks(spark: "SparkSession") -> int:
    """Return how many tasks a session's cluster runs at a time; waits for the first executor.

    Where the settings say how large it is to be, that counts; else how large it is.

    Raises:
        PipelineError: executors cannot run our tasks.
    """
    context = spark.sparkContext
    conf = context.getConf()
    if not is_local(context.master):
        _try_executor(context)
    told = conf.get("spark.default.parallelism") or conf.get("spark.cores.max")
    if told is None and not is_local(context.master):
        executors = conf.get("spark.dynamicAllocation.maxExecutors") or conf.get(
            "spark.executor.instances"
        )
        if executors is not None:
            told = str(int(executors) * int(conf.get("spark.executor.cores") or 1))
        else:
            _await_executors(lambda: context.defaultParallelism)
    return int(told) if told else context.defaultParallelism


def _try_executor(context: Any) -> None:
    """Run a task that needs what ours need, as soon as there is an executor."""
    try:
        context.parallelize(range(1), 1).map(_import_ours).count()
    except Exception as error:  # noqa: BLE001  # Java's errors are of many kinds
        lines = [each.strip() for each in str(error).splitlines()]
        told = [each for each in lines if _TELLING.search(each)] or lines
        what = (
            f"executors of {context.master} cannot run tasks of callboard ({told[0]}); install"
            " callboard[spark] in the Python that PYSPARK_PYTHON names there, by default the"
            " python3 of their path"
        )
        raise PipelineError(what) from None


def _import_ours(_: int) -> None:
    """Import what tasks need."""
    TASK_MODULES.load("spark")


def _await_executors(count: Callable[[], int]) -> None:
    """Wait until the executors are there that come together with the first one."""
    seen = -1
    for _ in range(_LOOKS):
        if seen == (seen := count()):
            return
        time.sleep(_QUIET)


def choose_partitions(master: str, tasks: int) -> int:
    """Return how many parts a query's states have.

    Each part of each operator with states is a store that is opened, written and committed in
    every micro-batch: with Spark's 200 on some processors this is all that a batch does.
    """
    return max(2, min(tasks, _MOST_LOCAL if is_local(master) else _MOST_PARTITIONS))
