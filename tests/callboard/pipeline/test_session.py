"""Settings of a session before Spark starts, and the size of its cluster."""

import os
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="needs pip install 'callboard[spark]'")

from callboard.pipeline import InvalidSetting, PipelineError, session
from callboard.pipeline.spark import cluster
from callboard.pipeline.spark.cluster import choose_partitions, count_tasks
from callboard.pipeline.spark.source import split
from callboard.pipeline.spark_session import starting


@pytest.mark.parametrize(
    ("master", "conf", "variable"),
    [
        ("sc://there:15002", {}, ""),
        ("", {"spark.remote": "sc://there"}, ""),
        ("local[1]", {"spark.api.mode": "connect"}, ""),
        ("local[1]", {}, "SPARK_REMOTE"),
    ],
)
def test_spark_connect_is_refused_before_java_starts(monkeypatch, master, conf, variable):
    if variable:
        monkeypatch.setenv(variable, "sc://there")

    with pytest.raises(InvalidSetting, match="Spark Connect .* pass the master of the cluster"):
        session(master, conf=conf)


class Sized:
    """A session that answers questions about the size of its cluster."""

    def __init__(self, master, sizes=(), **conf):
        self.sparkContext = self
        self.master, self._sizes, self._conf = master, list(sizes), conf
        self.jobs = 0

    def getConf(self):  # noqa: N802
        return self

    def get(self, name):
        return self._conf.get(name.replace(".", "_"))

    def parallelize(self, *_):
        return self

    def map(self, _):
        return self

    def count(self):
        self.jobs += 1
        if self.master == "spark://bare:7077":
            raise RuntimeError(TOLD)

    @property
    def defaultParallelism(self):  # noqa: N802
        return self._sizes.pop(0) if len(self._sizes) > 1 else self._sizes[0]


@pytest.mark.parametrize(
    ("conf", "expected"),
    [
        ({"spark_default_parallelism": "12"}, 12),
        ({"spark_cores_max": "6"}, 6),
        ({"spark_executor_instances": "3", "spark_executor_cores": "4"}, 12),
        ({"spark_dynamicAllocation_maxExecutors": "5"}, 5),
    ],
)
def test_the_size_of_a_cluster_is_taken_from_its_settings(conf, expected):
    spark = Sized("spark://there:7077", **conf)

    assert count_tasks(spark) == expected
    assert spark.jobs == 1


def test_without_settings_the_size_is_counted_from_the_executors(monkeypatch):
    monkeypatch.setattr(cluster, "_QUIET", 0)
    spark = Sized("k8s://there", sizes=(2, 8, 16, 16, 16))

    assert count_tasks(spark) == 16
    assert spark.jobs == 1
    assert count_tasks(Sized("local[3]", sizes=(3,))) == 3


TOLD = """Job aborted due to stage failure: Task 0 in stage 0.0 failed 4 times
Error from python worker:
  /usr/bin/python3: No module (ModuleNotFoundError: No module named 'callboard')
PYTHONPATH was:"""


def test_executors_without_callboard_are_reported_in_one_line():
    said = (
        r"spark://bare:7077 cannot .*No module named 'callboard'.*; install callboard\[spark\]"
    )
    with pytest.raises(PipelineError, match=said) as error:
        count_tasks(Sized("spark://bare:7077"))

    assert "\n" not in str(error.value)


def test_states_have_a_part_for_each_task_that_runs_at_a_time():
    assert [choose_partitions("spark://h:1", tasks) for tasks in (1, 6, 999)] == [2, 6, 200]
    assert choose_partitions("local[64]", 64) == 8


def test_a_log_is_cut_for_the_tasks_of_the_cluster_not_for_the_driver(monkeypatch):
    monkeypatch.setenv(cluster.TASKS, "7")

    assert len(split(0, 1_000_000)) == 7
    assert len(split(0, 50_000)) == 2


@pytest.fixture
def told(monkeypatch):
    """Return the variables that Spark starts with."""
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    monkeypatch.setenv("PATH", "/usr/bin")

    def run(python="", **how):
        before = dict(os.environ)
        with starting(None, python, **{"here": False, **how}):
            inside = dict(os.environ)
        assert dict(os.environ) == before
        return inside

    return run


def test_executors_run_a_python_of_their_own_unless_the_user_names_one(told, monkeypatch):
    plain = told()
    assert "PYSPARK_PYTHON" not in plain
    assert plain["PATH"].split(":")[0] == str(Path(sys.executable).parent)
    assert plain["PYSPARK_DRIVER_PYTHON"] == sys.executable

    assert told("/opt/python")["PYSPARK_PYTHON"] == "/opt/python"
    forked = told(here=True)["PYSPARK_PYTHON"]
    assert Path(forked).read_text().startswith("#!/bin/sh") or sys.platform != "linux"
    monkeypatch.setenv("PYSPARK_PYTHON", "/usr/bin/python3")
    assert told(here=True)["PYSPARK_PYTHON"] == "/usr/bin/python3"
