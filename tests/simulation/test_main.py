"""The command that lives many lives: processes share the work, failures leave their events."""

import subprocess
import sys
from pathlib import Path

from tests.simulation import batch
from tests.simulation.channel_life import ChannelLife
from tests.simulation.life import Life
from tests.simulation.rules import Violation
from tests.simulation.topic_life import TopicLife

ROOT = Path(__file__).parents[2]


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
