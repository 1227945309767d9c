"""Queries as services: how they end, and the files for Airflow and dbt."""

import os
import re
import runpy
import shlex
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from callboard.commitlog import CommitLog, LogReader
from callboard.demo.flights.day import load_flights
from callboard.pipeline.failure import is_slow_start, reason_of
from tests.polling import eventually

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "examples"
COMMAND = [sys.executable, "-m", "callboard", "pipeline", "run"]

pytestmark = [pytest.mark.spark, pytest.mark.timeout(500)]


@pytest.fixture
def flights(tmp_path):
    """A log with a day of flights."""
    with CommitLog(tmp_path / "flights", sync="none") as log:
        for flight in load_flights():
            log.append(flight.topic, flight.payload)
    return tmp_path / "flights"


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_whole_group_ends_a_query_in_order(flights, tmp_path, number):
    pytest.importorskip("pyspark", reason="needs pip install 'callboard[spark]'")
    out = tmp_path / "out"
    options = ["--log", flights, "--to", out, "--field", "delay", "--master", "local[1]"]
    with subprocess.Popen(
        [*COMMAND, "rates", *map(str, options)],
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        process_group=0,
    ) as query:
        try:
            eventually(
                lambda: list((out / "queries" / "rates" / "checkpoint" / "commits").glob("0")),
                320.0,
                interval=0.1,
            )
            os.killpg(query.pid, number)
            _, said = query.communicate(timeout=100)
        finally:
            query.kill()

    assert query.returncode == 0, said
    ended = r"^rates: stopped after [\d,]+ records, of which 0 did not decode$"
    assert re.search(ended, said, re.MULTILINE)


def test_a_python_that_starts_too_slowly_is_named_with_the_way_out():
    error = RuntimeError("Query terminated: Python worker failed to connect back.\n at org.x")

    assert is_slow_start(error)
    assert "start the query again, which continues from its checkpoint" in reason_of(error)
    assert len(reason_of(error).splitlines()) == 1


@pytest.fixture
def airflow(monkeypatch):
    """A stand-in for Airflow that collects the commands of a DAG."""
    commands, settings = [], []

    @contextmanager
    def dag(name, **options):
        settings.append((name, options))
        yield name

    modules = {
        "airflow": SimpleNamespace(DAG=dag),
        "airflow.operators": ModuleType("airflow.operators"),
        "airflow.operators.bash": SimpleNamespace(
            BashOperator=lambda **told: commands.append(told["bash_command"])
        ),
    }
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    return SimpleNamespace(commands=commands, settings=settings)


def commands_of(airflow, monkeypatch, flights, out):
    monkeypatch.setenv("CALLBOARD", f"{shlex.quote(sys.executable)} -m callboard")
    monkeypatch.setenv("CALLBOARD_LOG", str(flights))
    monkeypatch.setenv("CALLBOARD_RESULTS", str(out))
    runpy.run_path(str(EXAMPLES / "airflow" / "flights_dag.py"))
    return airflow.commands


def test_the_dag_for_airflow_runs_one_query_at_a_time(airflow, monkeypatch, flights, tmp_path):
    (command,) = commands_of(airflow, monkeypatch, flights, tmp_path / "out")

    ((name, options),) = airflow.settings
    assert (name, options["max_active_runs"]) == ("flights", 1)
    assert command.startswith("exec ")
    assert "--once" in command


@pytest.mark.slow
def test_the_command_of_the_dag_adds_nothing_when_it_is_repeated(
    airflow, monkeypatch, flights, tmp_path
):
    pytest.importorskip("pyspark", reason="needs pip install 'callboard[spark]'")
    out = tmp_path / "out"
    (command,) = commands_of(airflow, monkeypatch, flights, out)

    ends = []
    for _ in range(2):
        subprocess.run(["bash", "-c", command], check=True, cwd=ROOT, timeout=200)
        ends.append(LogReader(out).end)

    assert ends[0] == ends[1] == 65


def test_the_models_for_dbt_give_the_delays_of_each_airport_and_hour(flights, monkeypatch):
    duckdb = pytest.importorskip("duckdb", reason="needs pip install 'callboard[sql]'")
    monkeypatch.setenv("CALLBOARD_LOG", str(flights))
    models = EXAMPLES / "dbt" / "models"
    told = {}
    dbt = SimpleNamespace(config=lambda **options: told.update(options))

    table = runpy.run_path(str(models / "flights.py"))["model"](dbt, None)
    with duckdb.connect() as database:
        database.execute("SET TimeZone = 'UTC'")
        database.register("flights", table)
        text = (models / "delays.sql").read_text().replace("{{ ref('flights') }}", "flights")
        rows = database.execute(text).fetchall()

    assert told == {"materialized": "table"}
    assert len(rows) == 66
    assert sum(row[2] for row in rows) == len(load_flights())
