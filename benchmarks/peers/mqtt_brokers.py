"""MQTT brokers as processes: callboard's router, Mosquitto (Debian) and amqtt (PyPI)."""

import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.measure import PeerMissingError, Subject, ready
from benchmarks.peers import environment
from benchmarks.processes import ROOT, RunFailedError, printed_rate, serving

LOAD = Path(__file__).with_name("mqtt_load.py")
MOSQUITTO = "/usr/sbin/mosquitto"
START_LIMIT = 10.0
"""Seconds until a broker listens."""

SETTINGS = """\
listener {port} 127.0.0.1
allow_anonymous true
persistence false
set_tcp_nodelay true
max_inflight_messages {window}
max_queued_messages 0
log_type error
"""
"""With its default, Nagle's algorithm holds up small windows; limits must not drop anything."""


def prepare_mosquitto() -> None:
    """Find Mosquitto.

    Raises:
        PeerMissingError: it is not installed.
    """
    if not Path(MOSQUITTO).exists():
        message = "not installed: apt install mosquitto"
        raise PeerMissingError(message)


def version() -> str:
    """Return Mosquitto's version."""
    if not Path(MOSQUITTO).exists():
        return "none"
    told = subprocess.run([MOSQUITTO, "-h"], capture_output=True, text=True, check=False).stdout
    found = re.search(r"version ([\d.]+)", told)
    return found[1] if found else "unknown"


@contextmanager
def ours() -> Iterator[tuple[int, int]]:
    """Run callboard's router; gives its port and process id."""
    with serving([sys.executable, "-m", "benchmarks.mqtt_router"]) as (process, port):
        yield int(port), process.pid


@contextmanager
def mosquitto(window: int = 1000) -> Iterator[tuple[int, int]]:
    """Run Mosquitto; gives its port and process id.

    Args:
        window: unacknowledged messages to and from a client; 0 is unlimited.
    """
    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        settings = Path(folder) / "mosquitto.conf"
        settings.write_text(SETTINGS.format(port=port, window=window))
        with listening([MOSQUITTO, "-c", str(settings)], port) as pid:
            yield port, pid


@contextmanager
def amqtt() -> Iterator[tuple[int, int]]:
    """Run amqtt; gives its port and process id."""
    port = free_port()
    with listening(environment.program("amqtt_program.py", str(port)), port) as pid:
        yield port, pid


def free_port() -> int:
    """Return a free port: these brokers cannot pick one."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        port: int = found.getsockname()[1]
        return port


@contextmanager
def listening(command: list[str], port: int) -> Iterator[int]:
    """Run a broker for a `with` block; yield its process id when it listens."""
    broker = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + START_LIMIT
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
            except OSError:
                if time.monotonic() > deadline or broker.poll() is not None:
                    message = f"{Path(command[0]).name} does not listen"
                    raise RunFailedError(message) from None
                time.sleep(0.05)
            else:
                break
        yield broker.pid
    finally:
        broker.kill()
        broker.wait()


BROKERS = {
    "callboard": (ours, ready),
    "mosquitto": (mosquitto, prepare_mosquitto),
    "amqtt": (amqtt, environment.prepare),
}


def measured(broker: str, *work: str) -> float:
    """Return what the load generator found of a broker."""
    with BROKERS[broker][0]() as (port, pid):
        return printed_rate([sys.executable, str(LOAD), str(port), str(pid), *work])


def flow(
    qos: int, publishers: int, subscribers: int, *more: str, **messages: int
) -> list[Subject]:
    """Return the subjects of a flow; `messages` is what each publisher of a broker sends."""
    name = "50 pairs" if more else f"{publishers} to {subscribers}"
    shape = (str(qos), str(publishers), str(subscribers))

    def subject(broker: str) -> Subject:
        def run(share: float) -> float:
            count = max(1, int(messages[broker] * share))
            return measured(broker, "flow", *shape, str(count), *more)

        against = None if broker == "callboard" else f"callboard, {name}"
        return Subject(f"{broker}, {name}", run, BROKERS[broker][1], against)

    return [subject(broker) for broker in BROKERS]
