"""Every example runs, and prints what it says."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from callboard import Node
from callboard.pipeline import SparkMissing
from callboard.pipeline.state import Baseline, Detection, learn_all
from examples import temperatures
from examples.detector import Detector, Measured

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parent.parent / "examples"

PRINTED = {
    "detector.py": [
        "/hall, hour 200: 35.0 for 22.8",
        "/cellar, hour 300: 2.0 for 12.0",
    ],
    "temperatures.py": [
        "42 anomalies found, 48 are known",
        "precision 1.00, recall 0.88",
    ],
    "two_nodes.py": ["HELLO", "killed"],
    "supervised.py": ["2.0", "RemoteError: ZeroDivisionError: division by zero", "3.0"],
    "thespian_program.py": ["HELLO, WORLD!"],
    "flow_files.py": [
        f"{len(list(EXAMPLES.rglob('*.py')))} files sent by 4 clients at once",
        f"{len(list(EXAMPLES.rglob('*.py')))} files came back with the same checksum",
    ],
    "gateway_metrics.py": ["3 modules run", "memory was recorded: True"],
    "mqtt_stations.py": [
        "24 clients published 576 readings",
        "one of 2 hosts is killed",
        "24 of 24 stations know their last readings",
        "seattle-07: [62.2, 60.9, 59.7]",
    ],
    "recording.py": [
        "0 /room/1 {'celsius': 20.5} from sensors",
        "1 /room/2 {'celsius': 20.7} from sensors",
        "2 /room/3 {'celsius': 21.0} from sensors",
    ],
    "zeek_detector.py": [
        f"{zeek} drops 198.51.100.7 for 10min: 4 targets refused it"
        for zeek in ("dmz", "lab", "office")
    ],
    "zeek_logs.py": [
        "60 records from 2 nodes",
        "198.51.100.7 asked at 10 doors",
        "10.1.0.12 moved 439,650 bytes, seen by worker-1",
        "10.1.0.14 moved 288,152 bytes, seen by worker-1",
        "10.1.0.11 moved 276,455 bytes, seen by worker-1",
    ],
    "workers.py": ["[168, 303]", "unreachable", "25"],
}
#: Examples that start Spark, which takes a while and is not everywhere.
OF_SPARK = {"temperatures.py"}


def test_every_example_is_listed():
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(PRINTED)


@pytest.mark.parametrize("name", PRINTED)
def test_example_says_how_to_run_it(name):
    said = ast.get_docstring(ast.parse((EXAMPLES / name).read_text()))

    assert said is not None
    assert said.endswith(f"Run it with `python examples/{name}`.")


def run_example(name, seconds, **settings):
    done = subprocess.run(
        [sys.executable, EXAMPLES / name],
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("name", sorted(set(PRINTED) - OF_SPARK))
def test_example_prints_what_it_says(name):
    assert run_example(name, 120) == PRINTED[name]


@pytest.mark.spark
@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", sorted(OF_SPARK))
def test_example_of_spark_prints_what_it_says(name):
    pytest.importorskip("pyspark", reason="needs pip install 'callboard[spark]'")
    quick_to_start = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"  # Java compiles little
    said = run_example(name, 390, SPARK_SUBMIT_OPTS=quick_to_start)

    if said[0].startswith("skipped: "):
        pytest.skip("there is no Java for Spark")
    assert said == PRINTED[name]


def test_without_spark_the_temperatures_say_so_in_one_line(monkeypatch, capsys):
    def refuse(*_, **__):
        raise SparkMissing("Spark needs Java 17")

    monkeypatch.setattr(temperatures, "session", refuse)

    temperatures.main()

    assert capsys.readouterr().out == "skipped: Spark needs Java 17\n"


def test_the_actor_finds_the_anomalies_that_the_function_finds_in_each_topic():
    hourly = Detection(warmup=72, slots=24)
    years = {place: temperatures.load_temperatures(place) for place in temperatures.PLACES}
    series = {
        place: [(each.time / 1e9, each.temperature) for each in year[:1600]]
        for place, year in years.items()
    }
    expected = {
        place: learn_all(Baseline(), values, hourly)[1] for place, values in series.items()
    }

    found = {place: [] for place in series}
    with Node() as node:
        detector = node.spawn(Detector, hourly)
        answers = [
            (place, detector.ask(Measured(place, *value)))
            for values in zip(*series.values(), strict=True)
            for place, value in zip(series, values, strict=True)
        ]
        for place, answer in answers:
            if (unusual := answer.result(10)) is not None:
                found[place].append((unusual.time, unusual.value, unusual.score))

    assert all(expected.values())
    assert found == {
        place: [(each.time, each.value, each.score) for each in anomalies]
        for place, anomalies in expected.items()
    }


def test_the_example_of_a_test_suite_passes():
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "."],
        cwd=EXAMPLES / "testing_a_cluster",
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert done.returncode == 0, done.stdout
    assert "5 passed" in done.stdout
