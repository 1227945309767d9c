"""The demo with real processes, from the outside."""

import contextlib
import fcntl
import functools
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
import uuid
from pathlib import Path

import psutil
import pytest

from tests.polling import eventually

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
MARK = "CALLBOARD_DEMO_TEST"
LAST_LINE = re.compile(
    r"balance: sent ([\d,]+) = delivered ([\d,]+) \+ reported lost ([\d,]+)( · .*)?"
)


class Demo:
    """One run of the demo; its processes are known by a mark in their environment."""

    def __init__(self, *arguments, beside=(), **streams):
        self.mark = uuid.uuid4().hex
        python_path = os.pathsep.join(
            [*map(str, beside), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        )
        self.process = subprocess.Popen(
            [sys.executable, "-m", "callboard", "demo", *arguments],
            env={**os.environ, MARK: self.mark, "PYTHONPATH": python_path, "TERM": "xterm"},
            **streams,
        )

    def processes(self):
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(MARK) == self.mark and process.status() != "zombie":
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def nodes(self):
        found = {}
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):  # killed since it was listed
                command = process.cmdline()
                if "callboard.demo.node_process" in command:
                    found[command[3]] = process
        return found

    def close(self):
        for process in self.processes():
            process.kill()
        self.process.wait()


@pytest.fixture
def without_spark(tmp_path):
    """Return a folder whose sight hides Spark: stories without an end would start it."""
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['pyspark'] = None\n")
    return [tmp_path]


@pytest.fixture
def start():
    demos = []

    def start_demo(*arguments, **streams):
        demos.append(Demo(*arguments, **streams))
        return demos[-1]

    yield start_demo
    for demo in demos:
        demo.close()


wait_for = functools.partial(eventually, seconds=100.0, interval=0.02)


def number(text):
    return int(text.replace(",", ""))


@pytest.mark.timeout(300)
def test_the_story_ends_with_an_exact_balance_and_no_process_left(start):
    demo = start("--seconds", "8", stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    out, err = demo.process.communicate(timeout=240)

    assert demo.process.returncode == 0, out + err
    assert err == ""
    assert "\x1b" not in out
    match = LAST_LINE.fullmatch(out.splitlines()[-1])
    sent, delivered, lost = map(number, match.groups()[:3])
    assert sent == delivered + lost
    assert sent > 0
    assert re.search(
        r"· down after [\d,]+ ms over 3 hops · back in service after [\d,]+ ms"
        r" · [1-9]\d* entities back after [\d,]+ ms",
        match[4],
    )
    for told in (
        "aggregator spawned on C",
        "C is killed (SIGKILL)",
        "A has no path to D any more",
        "sensors on D down: unreachable",
        "aggregator spawned on B",
        "aggregator on B: first reading handled",
        "C is started again",
        "A reaches D, hops: 3",
        "store: master open on C, 0 entries, 0 writes kept",
    ):
        assert told in out
    assert re.search(r"MQTT: paho published (\d+) readings of A's sensors, \1 came to", out)
    assert re.search(r"master open on C, 2\d entries, [1-9]\d* writes kept", out)
    assert re.search(r" · store: [1-9][\d,]* writes acknowledged, 0 lost$", match[4])
    assert demo.processes() == []


@pytest.mark.timeout(300)
def test_json_is_all_that_is_printed_and_tells_every_milestone(start, without_spark):
    arguments = ("--seconds", "8", "--json")
    demo = start(*arguments, beside=without_spark, stdout=subprocess.PIPE, text=True)
    out, _ = demo.process.communicate(timeout=240)

    summary = json.loads(out)
    assert demo.process.returncode == 0
    assert summary["exact"] is True
    subjects = ("cpu", "memory", "disk", "network", "processes")
    assert summary["topics"].keys() == {
        f"/metrics/{node}/{subject}" for node in "AD" for subject in subjects
    }
    assert min(summary["topics"].values()) > 0
    (incident,) = summary["incidents"]
    assert incident["ms"].keys() == {
        "down",
        "down_far",
        "unreachable",
        "lost",
        "respawned",
        "serving",
        "restarted",
        "rejoined",
        "resumed",
        "reopened",
        "peaks",
    }
    assert summary["peaks"] > 0
    assert summary["peaks_ms"] > 0
    # Two lives counted; of ten metrics the latest value and the peak are kept.
    assert summary["store"].pop("acknowledged") > 0
    mqtt = summary["mqtt"]
    assert mqtt["passed"] > 0
    assert mqtt["passed"] == mqtt["published"] == mqtt["brought"] == mqtt["recorded"]
    assert summary["store"] == {"entries": 22, "lost": 0, "doubled": 0, "checked": True}


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_rates_quantiles_and_anomalies_of_spark_come_back_while_the_nodes_run(start):
    """The story is longer than anybody waits: it is ended when all of them are there."""
    pytest.importorskip("pyspark", reason="needs pip install 'callboard[spark]'")
    demo = start("--seconds", "180", stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    shown = re.compile(
        r"spark: .* · [1-9][\d,]* rates, [1-9][\d,]* quantiles, [1-9][\d,]* anomalies"
        r" as messages on D · [1-9]\d* entries in the store"
    )

    for line in demo.process.stdout:
        if "spark: missing" in line:
            pytest.skip("there is no Java for Spark")
        if shown.search(line):
            break
    else:
        pytest.fail("the story ended before")
    demo.process.send_signal(signal.SIGINT)
    out, err = demo.process.communicate(timeout=240)

    assert demo.process.returncode == 0, out + err
    assert re.search(r"^anomalies: \d+ of 24 planted ones found", out, re.MULTILINE)
    assert re.search(r"^Spark: equal: [1-9]\d* of \d+ windows", out, re.MULTILINE)
    assert "DIFFER" not in out
    assert re.search(r"results of Spark: \d+ rates, .* reached D as messages, \d+ are", out)
    assert LAST_LINE.fullmatch(out.splitlines()[-1])
    assert demo.processes() == []


@pytest.mark.timeout(300)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_in_order(start, number, without_spark):
    demo = start("--forever", beside=without_spark, stdout=subprocess.PIPE, text=True)
    for line in demo.process.stdout:
        if "first reading handled" in line:
            break
    demo.process.send_signal(number)
    out, _ = demo.process.communicate(timeout=240)

    assert demo.process.returncode == 0
    assert LAST_LINE.fullmatch(out.splitlines()[-1])
    assert demo.processes() == []


@pytest.mark.timeout(300)
def test_when_the_parent_is_killed_the_nodes_end_even_a_frozen_one(start, without_spark):
    demo = start("--forever", beside=without_spark, stdout=subprocess.PIPE, text=True)
    for line in demo.process.stdout:
        if "first reading handled" in line:
            break
    nodes = demo.nodes()
    assert nodes.keys() == set("ABCD")
    nodes["B"].suspend()
    wait_for(lambda: nodes["B"].status() == psutil.STATUS_STOPPED)  # the kernel looks for that
    demo.process.kill()
    demo.process.wait()

    wait_for(lambda: not demo.processes())


@pytest.mark.timeout(300)
def test_in_a_terminal_keys_hurt_the_nodes_and_the_terminal_is_put_back(start, without_spark):
    outer, inner = pty.openpty()
    fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 120, 0, 0))
    before = termios.tcgetattr(inner)
    demo = start("--forever", beside=without_spark, stdin=inner, stdout=inner, stderr=inner)
    shown = bytearray()

    def read():
        # All the time: a terminal that nobody reads would stop the demo in the middle of a
        # picture, and it would never come to the keys.
        with contextlib.suppress(OSError):  # closed at the end
            while piece := os.read(outer, 65536):
                shown.extend(piece)

    def shows(text):
        return text.encode() in shown

    reader = threading.Thread(target=read)
    reader.start()
    wait_for(lambda: shows("k kill a node"))
    os.write(outer, b"pd")
    wait_for(lambda: demo.nodes()["D"].status() == psutil.STATUS_STOPPED)
    os.write(outer, b"pd")
    wait_for(lambda: shows("D goes on"))
    killed = demo.nodes()["C"].pid
    os.write(outer, b"kc")
    wait_for(lambda: demo.nodes().get("C", demo.process).pid != killed)
    wait_for(lambda: shows("C is started again"))
    os.write(outer, b"ca")
    wait_for(lambda: shows("is cut"))
    os.write(outer, b"q")
    wait_for(lambda: shows("balance: sent") or demo.process.poll() is not None)

    assert demo.process.wait(240) == 0
    assert termios.tcgetattr(inner) == before
    assert demo.processes() == []
    os.close(inner)
    reader.join()
    os.close(outer)
