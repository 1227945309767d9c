"""A SQLite master that is killed under load, again and again."""

import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from callboard import Node
from callboard.store import attach_clone
from callboard.topics.hub import Hub
from tests.faults import KILLS


def _start(path: Path) -> tuple[subprocess.Popen[str], str]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.faults.store_master", str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


@pytest.mark.timeout(60 + 10 * KILLS)
def test_nothing_acknowledged_is_lost_and_nothing_is_done_twice(
    tmp_path: Path, figure: Callable[[str], None], eventually: Callable[..., Any]
) -> None:
    rng = random.Random(5)
    issued = acknowledged = 0
    printed = 0
    with Node() as node, attach_clone(Hub.of(node), "things") as clone:
        for life in range(KILLS + 1):
            process, address = _start(tmp_path / "things.db")
            try:
                node.connect(address)
                eventually(lambda: clone.await_idle(1.0), 20)
                assert (clone.get("counter") or 0) >= acknowledged
                held = dict(clone.mapping())
                assert [n for n in range(1, printed + 1) if held.get(n) != n] == []
                if life == KILLS:
                    assert clone.await_idle(20)
                    clone.increment("end")
                    eventually(lambda: clone.get("end") == 1, 20)
                    assert clone.get("counter") == issued
                until = time.monotonic() + rng.uniform(0.1, 0.6)
                while life < KILLS and time.monotonic() < until:
                    for _ in range(20):
                        clone.increment("counter")
                    issued += 20
                    if rng.random() < 0.5 and clone.await_idle(0.05):
                        acknowledged = issued
            finally:
                process.kill()
                out, _ = process.communicate()
            printed = max([printed, *map(int, out.split()[: out.count("\n")])])
    figure(f"{KILLS} kills: {issued} increments of a clone each once, {printed} puts kept")
    assert acknowledged > 0
    assert printed > 0
