"""Sends inside calls of callboard: each pair at each opcode, and many by chance."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.callboard.support.reentrant import SENDS
from tests.callboard.support.reentrant_parts import PARTS

#: How often faults are done; these take hours, so they are left out of a usual run.
ROUNDS = int(os.environ.get("CALLBOARD_ROUNDS", "1"))

pytestmark = [
    pytest.mark.faults,
    pytest.mark.skipif(ROUNDS < 10, reason="takes hours: CALLBOARD_ROUNDS=10 make faults"),
]

PROGRAM = Path(__file__).parents[1] / "callboard" / "reentrant.py"


def run_python(*args):
    command = [sys.executable, *map(str, args)]
    root = PROGRAM.parents[2]
    outcome = subprocess.run(command, capture_output=True, text=True, cwd=root)
    assert outcome.returncode == 0, outcome.stdout[-8000:] + outcome.stderr[-4000:]


def run_program(*args):
    run_python(PROGRAM, *args)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("outer", SENDS)
def test_every_send_is_right_before_each_opcode_of_every_other(outer):
    run_program("opcodes", outer, ",".join([*SENDS, "blocking"]))


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(10))
def test_a_thousand_sends_are_right_inside_others(seed):
    run_program("chance", seed, 1_000)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("way", ["del", "finalize", "warning", "unraisable"])
def test_garbage_and_signal_handlers_send_for_a_minute(way):
    run_program("garbage", 60, way)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("part", "outer", "inner"),
    [
        (part, outer, inner)
        for part, (_, calls) in PARTS.items()
        for outer in calls
        for inner in calls
        if (part, outer) not in (("mqtt", "receive"), ("log", "close"), ("each", "close"))
    ],
)
def test_every_call_is_right_before_each_opcode_of_every_other(part, outer, inner):
    run_python("-m", "tests.callboard.support.reentrant_parts", part, outer, inner, 1)
