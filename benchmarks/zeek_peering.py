"""Broker 2.x's wire: events of three arguments, in to a subscriber and out; and our own wire.

Events for each second that the process computes: on a machine that does other things too, this
says more than the clock. In: from the first event that the subscriber has to the last one. Out:
from the first `publish` until the other side has all. The other side of Broker's wire is a
program that has its frames ready, or only counts them: `peers/zeek_peer_load.py`. That of our
own wire is a second endpoint, in a separate process. No real Broker 2.x can be installed
here: both subjects are ours.
"""

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.measure import Measure, Subject
from benchmarks.processes import RunFailedError
from callboard.broker import BrokerOptions, Configuration, Count, Endpoint
from callboard.broker.zeek import Event

LOAD = Path(__file__).parent / "peers" / "zeek_peer_load.py"
NODE = Path(__file__).parent / "peers" / "zeek_node_load.py"
TOPIC = "/zeek/event/ping"
EVENTS = {"in": 200_000, "out": 100_000}
LIMIT = 50.0
"""Seconds for one flow."""

BATCH = 100


def endpoint() -> Endpoint:
    """Return an endpoint without TLS."""
    plain = BrokerOptions()
    plain.disable_ssl = True
    return Endpoint(Configuration(plain))


def flow(way: str, wire: str, share: float) -> float:
    """Measure one way over one wire."""
    events = max(1, int(EVENTS[way] * share) // BATCH) * BATCH
    role = {"in": "feed", "out": "take"}[way]
    program = LOAD if wire == "zeek-2" else NODE
    with endpoint() as ours, ours.make_subscriber(TOPIC) as subscriber:
        port = ours.listen("127.0.0.1", 0, wire=wire)
        command = [sys.executable, program, role, str(events), str(port)]
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        with subprocess.Popen(command, **pipes) as load:
            assert load.stdin is not None
            assert load.stdout is not None
            if load.stdout.readline().strip() != "ready" or not ready(ours, way):
                message = "the other side did not peer"
                raise RunFailedError(message)
            load.stdin.write("\n")
            load.stdin.flush()
            if way == "in":
                rate = taken(subscriber, events)
            else:
                rate = published(ours, load.stdout, events)
            load.stdin.close()
        return rate


def ready(ours: Endpoint, way: str) -> bool:
    """Wait until the other side's filter is known here."""
    return way == "in" or ours.await_filter_entry(TOPIC, LIMIT)


def taken(subscriber: Any, events: int) -> float:
    """Receive events; return the events per second of processor time."""
    left, began = events, 0.0
    while left:
        items = (
            subscriber.get(min(left, 10_000), LIMIT) if left > 1 else [subscriber.get(LIMIT)]
        )
        if not items or items[0] is None:
            message = f"{left} of {events} events did not come"
            raise RunFailedError(message)
        began = began or time.process_time()
        left -= len(items)
    return events / (time.process_time() - began)


def published(ours: Endpoint, told: Any, events: int) -> float:
    """Publish events until the other side has them; returns how many each second."""
    began = time.process_time()
    for number in range(events):
        ours.publish(TOPIC, Event("Test::ping", "hello world", Count(number), "10.0.0.1"))
    if told.readline().strip() != "done":
        message = "events were lost on their way out"
        raise RunFailedError(message)
    return events / (time.process_time() - began)


def subject(way: str, wire: str) -> Subject:
    """Return one of ours."""
    name = {"zeek-2": "callboard, Broker 2.x's wire", "native": "our own wire"}[wire]
    against = None if wire == "zeek-2" else f"callboard, Broker 2.x's wire, {way}"
    return Subject(f"{name}, {way}", lambda share: flow(way, wire, share), against=against)


MEASURE = Measure(
    title="events of three arguments on Broker 2.x's wire, and on ours",
    unit="events/CPU-s",
    subjects=tuple(subject(way, wire) for way in EVENTS for wire in ("zeek-2", "native")),
)
