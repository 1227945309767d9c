"""A copy of a journal into a log that is killed again and again has each event once."""

import random
from pathlib import Path

import pytest

from callboard import Node
from callboard.commitlog import LogError, LogReader
from tests.callboard.cli.process import start_command
from tests.callboard.entity.journal.carts import Cart
from tests.polling import eventually

pytestmark = [pytest.mark.faults, pytest.mark.timeout(300)]

KILLS, EACH = 6, 300


def end_of(log: Path) -> int:
    """Return how many records there are; none while there is no log yet."""
    try:
        return LogReader(log).end
    except LogError:
        return 0


def test_each_event_is_in_the_log_once_whenever_the_copy_is_killed(tmp_path: Path) -> None:
    state, log, rng = f"sqlite:{tmp_path}/shop.db", tmp_path / "log", random.Random(3)
    command = ("entity", "journal", Cart.name, "--state", state, "-f", "--to-log", log)
    with Node("host") as node:
        node.host(Cart, state=state)
        carts = [node.entity(Cart, f"k-{number}") for number in range(7)]
        for each in [cart.ask("first") for cart in carts]:
            each.result(30)
        for number in range(KILLS):
            copy = start_command(*command)
            end = end_of(log)
            try:
                asked = [carts[i % 7].ask(f"{number}-{i}") for i in range(EACH)]
                # Killed after it began to append, in the middle of what comes meanwhile.
                aim = end + rng.randrange(1, EACH)
                eventually(lambda aim=aim: end_of(log) >= aim, 60.0)
            finally:
                copy.kill()
                copy.communicate()
            for each in asked:
                each.result(30)
        node.journal(Cart).to_log(log)
        entries = list(node.journal(Cart))

    records = list(LogReader(log).read(0))
    assert [int(each.headers["position"]) for each in records] == list(
        range(1, KILLS * EACH + 8)
    )
    assert [each.key for each in records] == [entry.key for entry in entries]
