"""The command that lives many lives: processes share the work, failures leave their events."""

import logging
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation import __main__ as command
from tests.simulation import batch
from tests.simulation.channel_life import ChannelLife
from tests.simulation.life import Life
from tests.simulation.rules import Violation
from tests.simulation.topic_life import TopicLife

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_processes_share_the_seeds():
    command = [sys.executable, "-m", "tests.simulation", "--seeds", "40:64", "--jobs", "2"]

    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)

    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("24 lives of ")


def test_a_life_that_breaks_a_rule_leaves_its_events(tmp_path, monkeypatch):
    def begin(self):
        self.note("all goes wrong")
        raise Violation("it went wrong")

    monkeypatch.setattr(batch, "BUILD", tmp_path)
    monkeypatch.setattr(Life, "_begin", begin)

    _, failures, _ = batch.live(batch.Batch("nodes", 7, 8))

    assert failures[0].startswith(
        "seed 7: Violation: it went wrong\n  replay: python -m tests.simulation --seeds 7\n"
    )
    assert "live_nodes.scenario(cluster)" in failures[0]
    dump = tmp_path / ".callboard" / "failures" / "7.json"
    assert "all goes wrong" in dump.read_text()


def test_a_life_that_ends_the_kit_is_told_and_the_others_are_lived(tmp_path, monkeypatch):
    def live_one(kind, seed):
        if seed == 7:
            raise AssertionError("daemonic processes are not allowed to have children")
        return lived(kind, seed)

    lived = batch.live_one
    monkeypatch.setattr(batch, "BUILD", tmp_path)
    monkeypatch.setattr(batch, "live_one", live_one)

    _, failures, seconds = batch.live(batch.Batch("channels", 7, 9))

    assert len(failures) == 1
    assert failures[0].startswith(
        "seed 7: AssertionError: daemonic processes are not allowed to have children\n"
        "  replay: python -m tests.simulation --life channels --seeds 7\nTraceback"
    )
    assert seconds > 1


def test_nothing_is_logged_of_a_batch(monkeypatch, capsys):
    def live_one(kind, seed):
        logging.getLogger("callboard.entity").warning("a handler raised")
        return batch.Lived(1.0, None, None)

    monkeypatch.setattr(batch, "live_one", live_one)
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # those of pytest

    batch.live(batch.Batch("nodes", 0, 1))

    assert "a handler raised" not in capsys.readouterr().err
    assert logging.getLogger("callboard").propagate


def test_the_command_says_how_far_it_is(monkeypatch, capsys):
    monkeypatch.setattr(command, "live", lambda batch: (batch, [], 3600.0))
    monkeypatch.setattr(sys, "argv", ["tests.simulation", "--seeds", "0:430"])

    failed = command.main()

    assert failed == 0
    said = capsys.readouterr().out.splitlines()
    assert said[:-1] == ["200 of 430 lives, 0 broke a rule", "400 of 430 lives, 0 broke a rule"]
    assert said[-1].startswith("430 lives of 22.0 virtual hours, 0 broke a rule, ")


def test_lives_of_topics_are_replayed_apart(tmp_path, monkeypatch):
    def begin(self):
        self.note("all goes wrong")
        raise Violation("it went wrong")

    monkeypatch.setattr(batch, "BUILD", tmp_path)
    monkeypatch.setattr(TopicLife, "_begin", begin)

    _, failures, _ = batch.live(batch.Batch("topics", 7, 8))

    assert failures[0].startswith(
        "seed 7: Violation: it went wrong\n"
        "  replay: python -m tests.simulation --life topics --seeds 7\n"
    )
    assert "@cluster_test(seeds=[7], faults=[])" in failures[0]
    assert "live_topics.scenario(cluster)" in failures[0]
    assert (tmp_path / "topics" / ".callboard" / "failures" / "7.json").exists()


def test_a_channel_that_breaks_a_rule_is_told_with_its_faults(tmp_path, monkeypatch):
    def verify(self):
        raise Violation("it went wrong")

    monkeypatch.setattr(batch, "BUILD", tmp_path)
    monkeypatch.setattr(ChannelLife, "verify", verify)

    _, failures, seconds = batch.live(batch.Batch("channels", 7, 8))

    assert "\n  replay: python -m tests.simulation --life channels --seeds 7\n" in failures[0]
    assert "live_channels.scenario(cluster)" in failures[0]
    assert seconds > 1
    dump = (tmp_path / "channels" / ".callboard" / "failures" / "7.json").read_text()
    assert "Handshake" in dump
