"""A failing seed has the same events and answers in another process, whatever its hash seed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.replayed import differences, programs

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_twenty_failing_seeds_are_the_same_in_another_process():
    program = (
        "import json; from tests.simulation.replayed import programs; "
        "print(json.dumps(programs()))"
    )
    there = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONHASHSEED": "5", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        check=True,
    )
    here = programs()

    assert differences(json.loads(there.stdout), here) == []
    assert len(here) == 20
    assert not [events for events in here.values() if events[-1].startswith("NoneType")]
    assert sum(map(len, here.values())) > 5_000
