"""A reminder whose handler ends its process ends no more of them than are counted."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from callboard import Entity, Node, handler
from callboard.entity.state.backends import open_state
from callboard.entity.state.interface import PARKED_FROM
from callboard.errors import WrongArgument, WrongValue
from callboard.simulation import Cluster
from tests.callboard.entity.state.stores import reminders_of
from tests.polling import eventually
from tests.proxies.cast import ROOT

#: Keys of entities whose reminders are due as well.
OTHERS = 12

HOST = f"""
import os, sys, time
from callboard import Entity, Node, handler

class Clock(Entity):
    name = "parked-tests.Clock"
    @handler
    def on_set(self, delay: float) -> None:
        self.remind("ring", self.key, after=delay)
    @handler
    def on_ring(self, key: str) -> None:
        if key == "bad" and sys.argv[2] == "ends":
            print("ends", flush=True)
            os._exit(9)
        print("rang", key, flush=True)

with Node("host") as node:
    node.host(Clock, state=sys.argv[1])
    if sys.argv[2] == "sets":
        for key in ["bad", *(f"k{{n}}" for n in range({OTHERS}))]:
            node.entity(Clock, key).ask(1.0).result(10)
        os._exit(0)
    print("up", flush=True)
    sys.stdin.read()
"""


def host(url: str, mode: str) -> "subprocess.Popen[str]":
    """Start a process that hosts clocks."""
    return subprocess.Popen(
        [sys.executable, "-c", HOST, url, mode],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


#: Keys of reminders that came here.
RANG: list[str] = []


class Clock(Entity):
    name = "parked-tests.Clock"

    @handler
    def on_ring(self, key: str) -> None:
        RANG.append(key)


def rings(child: "subprocess.Popen[str]", missing: int) -> tuple[bool, set[str]]:
    """Read until the process ends or so many clocks rang: whether it ended, and which did."""
    assert child.stdout is not None
    rang = set[str]()
    while len(rang) < missing and (line := child.stdout.readline()):
        if line.startswith("rang"):
            rang.add(line.split()[1])
    return len(rang) < missing, rang


@pytest.mark.slow
def test_a_reminder_that_ends_processes_is_parked_and_costs_no_other_one(
    tmp_path: Path,
) -> None:
    url = f"sqlite:{tmp_path}/clocks.db"
    with host(url, "sets") as child:
        assert child.wait(60) == 0
    ends, rang = 0, set[str]()
    for _ in range(PARKED_FROM + 3):
        with host(url, "ends") as child:
            has_ended, more = rings(child, OTHERS - len(rang))
            rang |= more
            if not has_ended:
                assert child.stdin is not None
                child.stdin.close()
                break
            assert child.wait(60) == 9
            ends += 1
    # The first delivery counts only where the reminder was due before its slot came here.
    assert ends in {PARKED_FROM, PARKED_FROM + 1}
    assert rang == {f"k{number}" for number in range(OTHERS)}
    with Node() as node:
        (parked,) = node.parked_reminders("parked-tests.Clock", state=url)
        assert (parked.key, parked.name, parked.message) == ("bad", "ring", "bad")
        node.host(Clock, state=url)
        assert node.start_reminders(Clock, "other") == 0
        assert node.start_reminders(Clock, "bad", "other") == 0
        assert node.start_reminders(Clock, "bad") == 1
        eventually(lambda: RANG == ["bad"])
        eventually(lambda: node.parked_reminders(Clock) == [])


def run_cli(*arguments: str) -> str:
    """Run a command, and return what it prints."""
    command = [sys.executable, "-m", "callboard", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, env=environment, check=True, stdout=subprocess.PIPE, text=True, timeout=60
    )
    return done.stdout


class Failing(Entity):
    name = "parked-tests.Failing"
    fails = 0

    @handler
    def on_set(self, delay: float) -> None:
        self.remind("ring", self.key, after=delay)

    @handler
    def on_ring(self, key: str) -> None:
        Failing.fails += 1
        if Failing.fails <= 6:
            raise ValueError(key)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    Failing.fails = 0
    with closing(Cluster(7)) as made:
        yield made


def test_a_handler_that_raises_is_never_parked(cluster: Cluster) -> None:
    (asker,) = cluster(1)
    for number in range(6):
        (node,) = cluster(1)
        node.host(Failing, state="sqlite:failing.db")
        if not number:
            node.entity(Failing, "a").ask(0.1).result(5)
        cluster.advance(1.0)
        assert node.parked_reminders(Failing) == []
        cluster.kill(node)
        cluster.advance(5.0)
    (node,) = cluster(1)
    node.host(Failing, state="sqlite:failing.db")
    cluster.advance(120.0)
    assert Failing.fails > 6
    assert node.parked_reminders(Failing) == []
    assert asker.node_id


@pytest.mark.slow
def test_the_command_lists_and_starts_parked_reminders(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/clocks.db"
    with host(url, "sets") as child:
        assert child.wait(60) == 0
    with closing(open_state(url, "test")) as state:
        found = reminders_of(state, "parked-tests.Clock", "bad")
        state.set_attempts("parked-tests.Clock", found, PARKED_FROM)
    shown = json.loads(run_cli("entity", "reminders", "--state", url, "--json"))
    assert (shown["key"], shown["name"], shown["body"]) == ("bad", "ring", '"bad"')
    started = run_cli("entity", "reminders", "--state", url, "--start", "bad")
    assert started.startswith("1 started")
    assert run_cli("entity", "reminders", "--state", url, "--json") == ""


def test_what_cannot_be_meant_is_refused(tmp_path: Path) -> None:
    with Node() as node:
        with pytest.raises(WrongValue, match="state"):
            node.parked_reminders("parked-tests.None")
        with pytest.raises(WrongArgument):
            node.parked_reminders(int)  # type: ignore[arg-type]
        node.host(Clock, state=f"sqlite:{tmp_path}/a.db")
        with pytest.raises(WrongValue):
            node.start_reminders(Clock, "")
        with pytest.raises(WrongArgument):
            node.start_reminders(Clock, "a", 3)  # type: ignore[arg-type]
