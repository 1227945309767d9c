"""Topics: messages of another process, until all are recorded and durable.

A value is `[number, "hello"]`, as for `topic_flood`. For comparison a subscriber only reads
them; the difference is the cost of recording.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from benchmarks.log_append import check
from benchmarks.measure import Measure, Subject
from callboard import Endpoint, Node

MESSAGES = 200_000
TOPIC = "/flood"

PUBLISHER = """
import sys
from callboard import Endpoint, Node

with Node() as node, Endpoint(node=node) as endpoint:
    node.connect(sys.argv[1])
    assert endpoint.await_filter_entry("/flood")
    print(flush=True)
    sys.stdin.readline()
    for number in range(int(sys.argv[2])):
        endpoint.publish("/flood", [number, "hello"])
    endpoint.hub.flushed(30.0)
    sys.stdin.readline()
"""


def timed(endpoint: Endpoint, messages: int, wait: Callable[[], Any]) -> float:
    """Publish from another process; return messages per second until `wait` returns."""
    command = [sys.executable, "-c", PUBLISHER, endpoint.node.address, str(messages)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as publisher:
        assert publisher.stdin is not None
        assert publisher.stdout is not None
        publisher.stdout.readline()
        started = time.perf_counter()
        publisher.stdin.write(b"\n")
        publisher.stdin.flush()
        wait()
        taken = time.perf_counter() - started
        publisher.stdin.write(b"\n")
    return messages / taken


def recorded(share: float = 1.0) -> float:
    """Return messages for each second, recorded and durable."""
    messages = int(MESSAGES * share)
    with tempfile.TemporaryDirectory() as folder, Node() as node:
        node.listen("127.0.0.1", 0)
        with Endpoint(node=node) as endpoint, endpoint.record(TOPIC, folder) as recording:

            def wait() -> None:
                while recording.durable < messages:
                    time.sleep(0.001)

            rate = timed(endpoint, messages, wait)
        check(recording.recorded, messages)
    return rate


def subscribed(share: float = 1.0) -> float:
    """Return messages for each second, read one by one."""
    messages = int(MESSAGES * share)
    with Node() as node:
        node.listen("127.0.0.1", 0)
        with Endpoint(node=node) as endpoint, endpoint.make_safe_subscriber(TOPIC) as reader:

            def wait() -> None:
                for _ in range(messages):
                    reader.get()

            return timed(endpoint, messages, wait)


MEASURE = Measure(
    title="topics, recorded and durable",
    unit="messages/s",
    subjects=(
        Subject("callboard, recorded", recorded),
        Subject("callboard, only read", subscribed),
    ),
)
