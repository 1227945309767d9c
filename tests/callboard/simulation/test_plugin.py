"""What the pytest plugin does when a simulation fails, and with its options."""

import sys
from importlib.metadata import entry_points

import pytest

from callboard.simulation import plugin
from callboard.simulation.trace import Dump, dump_path

pytestmark = pytest.mark.slow

pytest_plugins = ["pytester"]


FAILING = """
from callboard import Actor, handler

class Echo(Actor):
    @handler
    def text(self, msg: str) -> str:
        return msg

def test_it(cluster):
    a, b, c = cluster(3, topology="ring")
    ref = a.ref(str(c.spawn(Echo)))
    assert ref.ask("hi").result(5) == "hi"
    cluster.loss(a, c, 0.3)
    cluster.advance(5.0)
    assert ref.ask("hi").result(5) == "ho"
"""


def test_pytest_finds_the_plugin_where_callboard_is_installed():
    (found,) = entry_points(group="pytest11", name="callboard")

    assert found.load() is plugin


def test_a_failure_prints_its_seed_and_how_to_replay_it(pytester: pytest.Pytester):
    pytester.makepyfile(FAILING)

    result = pytester.runpytest_subprocess("--callboard-seed=17")

    result.stdout.fnmatch_lines(
        ["seed 17; replay: callboard replay 17", "* events are in *17.json"]
    )


def test_a_failure_leaves_its_events_and_its_replay_has_the_same(pytester: pytest.Pytester):
    path = pytester.makepyfile(FAILING)
    pytester.runpytest_subprocess("--callboard-seed=17")

    replayed = pytester.run(sys.executable, "-m", "callboard", "replay", "17")

    kept = Dump.read(dump_path(pytester.path, 17))
    assert (kept.seed, kept.test) == (17, f"{path.name}::test_it")
    assert any("test loss a c 0.3" in event for event in kept.events)
    assert replayed.ret == 1
    assert replayed.outlines[-1] == (
        f"seed 17: the same {len(kept.events):,} events as in the run that failed"
    )


def test_events_are_written_where_one_wants_them(pytester: pytest.Pytester):
    pytester.makepyfile("def test_it(cluster):\n    cluster(2)\n")

    result = pytester.runpytest_subprocess("--callboard-events=here.json", "--callboard-seed=3")

    assert result.ret == 0
    assert any("LinkUp" in event for event in Dump.read(pytester.path / "here.json").events)
    assert not dump_path(pytester.path, 3).exists()


def test_the_same_seed_gives_the_same_run(pytester: pytest.Pytester):
    pytester.makepyfile(
        "from callboard.simulation import Cluster\n"
        "def run(seed):\n"
        "    made = Cluster(seed)\n"
        "    a, b, c = made(3, topology='ring')\n"
        "    made.advance(5)\n"
        "    sent = [(link.frames_sent, link.bytes_sent) for link in a.links()]\n"
        "    times = made.now\n"
        "    made.close()\n"
        "    return sent, times\n"
        "def test_it():\n"
        "    assert run(3) == run(3)\n"
        "    assert run(3)[1] != run(4)[1]\n"
    )

    assert pytester.runpytest_subprocess().ret == 0
