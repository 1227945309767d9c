"""Sends inside calls of callboard: each pair at each opcode, and many by chance."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.callboard.support.reentrant import SENDS

#: How often faults are done; these take hours, so they are left out of a usual run.
ROUNDS = int(os.environ.get("CALLBOARD_ROUNDS", "1"))

pytestmark = [
    pytest.mark.faults,
    pytest.mark.skipif(ROUNDS < 10, reason="takes hours: CALLBOARD_ROUNDS=10 make faults"),
]

PROGRAM = Path(__file__).parents[1] / "callboard" / "reentrant.py"


def run_program(*args):
    command = [sys.executable, str(PROGRAM), *map(str, args)]
    outcome = subprocess.run(command, capture_output=True, text=True)
    assert outcome.returncode == 0, outcome.stdout[-8000:] + outcome.stderr[-4000:]


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("outer", SENDS)
def test_every_send_is_right_before_each_opcode_of_every_other(outer):
    run_program("opcodes", outer, ",".join([*SENDS, "blocking"]))


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(10))
def test_a_thousand_sends_are_right_inside_others(seed):
    run_program("chance", seed, 1_000)


@pytest.mark.timeout(600)
def test_finalizers_and_signal_handlers_send_for_a_minute():
    run_program("garbage", 60)
