"""A job on a cluster of hosts with nothing in common gives what it gives here, and in pandas.

`CALLBOARD_ROUNDS` and `CALLBOARD_SEED` are those of `test_pipeline`. Where namespaces cannot be
had this is skipped, and fails in CI.
"""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="needs pip install 'callboard[spark]'")

from benchmarks.namespaces import again, why_not
from callboard.pipeline import SparkMissing
from callboard.pipeline.java import find_java
from tests.faults import ROUNDS

ROOT = Path(__file__).parents[2]
SEED = int(os.environ.get("CALLBOARD_SEED", random.SystemRandom().randrange(2**32)))
VICTIMS = ("executor", "log-server", "recorder", "driver")

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


@pytest.fixture(autouse=True)
def hosts():
    try:
        find_java()
    except SparkMissing as error:
        pytest.skip(str(error))
    if why := why_not():
        (pytest.fail if os.environ.get("CI") else pytest.skip)(why)


@pytest.mark.parametrize("number", range(ROUNDS))
def test_results_are_those_of_a_local_master_and_of_pandas_whatever_is_killed(
    tmp_path, figure, number
):
    order = random.Random(f"{SEED} {number}")
    victims = order.sample(VICTIMS, len(VICTIMS))
    figure(f"round {number + 1} of {ROUNDS}, CALLBOARD_SEED={SEED}")
    module = [sys.executable, "-m", "tests.faults.spark_cluster"]
    command = again(*module, str(tmp_path), f"{SEED} {number}", *victims)

    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)

    for line in done.stdout.splitlines():
        figure(line)
    assert done.returncode == 0, done.stderr[-4000:]
