"""The fixtures as the testing guide shows them, and what a failure prints."""

import pytest

from callboard import Actor, handler

pytest_plugins = ["pytester"]


class Echo(Actor):
    @handler
    def text(self, msg: str) -> str:
        return msg


def test_relay(cluster):
    a, b, c = cluster(3, topology="line")
    echo = c.spawn(Echo)
    there = a.ref(str(echo))
    assert there.ask("hi").result(5) == "hi"
    down = a.monitor(there)
    cluster.partition(b, c)
    cluster.advance(30.0)
    assert down.result(1).reason == "unreachable"
    cluster.heal()


def test_for_real(processes):
    a, b = processes(2, spawnable={"echo": Echo})
    echo = a.remote_spawn(b.address, "echo")
    down = a.monitor(echo)
    assert echo.ask("hi").result(5) == "hi"
    b.kill()
    assert down.result(5).reason == "unreachable"


def test_a_failure_prints_its_seed_and_how_to_replay_it(pytester: pytest.Pytester):
    pytester.makepyfile("def test_it(cluster):\n    cluster(2)\n    assert False\n")

    result = pytester.runpytest_subprocess("--callboard-seed=17")

    result.stdout.fnmatch_lines(["*seed 17; replay: *--callboard-seed=17*"])


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
