"""Topics with a package of Zeek Broker's interface: the same program for callboard and Broker.

    python topic_program.py PACKAGE relay|sink [--peer PORT]
    python topic_program.py PACKAGE flood|batches|rounds COUNT --peer PORT [--wire WIRE]

`relay` and `sink` listen, print their port, and end with their stdin; callboard's speak another
package's wire where one is named. The others publish and
print `rate X` at the end: messages by the time from the first publish until the sink said that
it has them all, or rounds (publish, wait for the answer) a second.
"""

import argparse
import collections
import collections.abc
import importlib
import os
import select
import sys
import time
from typing import Any

collections.Iterable = collections.abc.Iterable  # Broker 1.4 was written for Python 3.9

THERE, BACK = "/bench/there", "/bench/back"
BATCH = 100
POLL_SECONDS = 0.5
"""Seconds between two looks whether stdin ended."""

PATIENCE = 20.0
"""Seconds until the way there and back must work."""


def main() -> None:
    """Run one role."""
    parser = argparse.ArgumentParser()
    parser.add_argument("package")
    parser.add_argument("role", choices=("relay", "sink", "flood", "batches", "rounds"))
    parser.add_argument("count", type=int, nargs="?", default=0)
    parser.add_argument("--peer", type=int)
    parser.add_argument("--wire")
    options = parser.parse_args()
    options.spoken = {"wire": options.wire} if options.wire else {}
    broker = importlib.import_module(options.package)
    plain = broker.BrokerOptions()
    plain.disable_ssl = True  # on both sides: encryption is not measured
    endpoint = broker.Endpoint(broker.Configuration(plain))
    if options.role in ("relay", "sink"):
        serve(endpoint, options)
    else:
        print("rate", measure(broker, endpoint, options), flush=True)
    endpoint.shutdown()


def serve(endpoint: Any, options: argparse.Namespace) -> None:
    """Forward, or answer, until stdin ends."""
    if options.role == "sink":
        subscriber = endpoint.make_subscriber([THERE])
    else:
        endpoint.forward([THERE, BACK])
    port = endpoint.listen("127.0.0.1", 0, **options.spoken)
    if options.peer:
        endpoint.peer("127.0.0.1", options.peer, **options.spoken)
    print(port, flush=True)
    if options.role == "sink":
        answer(endpoint, subscriber)
    else:
        sys.stdin.read()
    os._exit(0)  # Broker 1.4 may hang when it shuts down under way


def answer(endpoint: Any, subscriber: Any) -> None:
    """Answer each text; count other messages, and report when all have arrived."""
    seen = wanted = 0
    while True:
        # Broker 1.4 keeps Python's lock while it waits, so no other thread could read stdin.
        got = subscriber.get() if seen < wanted else subscriber.get(POLL_SECONDS)
        if got is None:
            if select.select([sys.stdin], [], [], 0)[0]:
                return
            continue
        value = got[1]
        if isinstance(value, tuple):
            seen += 1
            if seen == wanted:
                endpoint.publish(BACK, f"done {seen}")
        elif value.startswith("expect "):
            seen, wanted = 0, int(value[7:])
            endpoint.publish(BACK, value)
        else:
            endpoint.publish(BACK, value)


def measure(broker: Any, endpoint: Any, options: argparse.Namespace) -> float:
    """Return messages or rounds a second."""
    subscriber = endpoint.make_subscriber([BACK])
    endpoint.peer("127.0.0.1", options.peer, **options.spoken)
    wait_until_open(endpoint, subscriber)
    count = options.count
    if options.role == "rounds":
        rounds(endpoint, subscriber, max(count // 10, 1))
        return rounds(endpoint, subscriber, count)
    send = flood if options.role == "flood" else batches
    for share in (max(count // 10, BATCH), count):  # a tenth as warm-up
        ask(endpoint, subscriber, f"expect {share}")
        started = time.perf_counter()
        send(broker, endpoint, share)
        wait_for(subscriber, f"done {share}")
        took = time.perf_counter() - started
    return count / took


def wait_until_open(endpoint: Any, subscriber: Any) -> None:
    """Publish until an answer arrives: Broker 1.4 has no call that waits for a path."""
    give_up_at = time.monotonic() + PATIENCE
    number = 0
    while time.monotonic() < give_up_at:
        number += 1
        endpoint.publish(THERE, f"probe {number}")
        got = subscriber.get(0.2)
        if got is not None:
            ask(endpoint, subscriber, "open")
            return
    sys.exit("the sink does not answer")


def ask(endpoint: Any, subscriber: Any, text: str) -> None:
    """Publish a text and wait for it to come back."""
    endpoint.publish(THERE, text)
    wait_for(subscriber, text)


def wait_for(subscriber: Any, text: str) -> None:
    """Wait for one answer; earlier ones may still come before it."""
    while subscriber.get()[1] != text:
        pass


def flood(_broker: Any, endpoint: Any, count: int) -> None:
    """Publish small messages one by one."""
    publish = endpoint.publish
    for number in range(count):
        publish(THERE, [number, "hello"])


def batches(broker: Any, endpoint: Any, count: int) -> None:
    """Publish them by the hundred."""
    publish_batch = endpoint.publish_batch
    for first in range(0, count, BATCH):
        publish_batch(*[(THERE, [number, "hello"]) for number in range(first, first + BATCH)])


def rounds(endpoint: Any, subscriber: Any, count: int) -> float:
    """Publish and wait for the answer, `count` times."""
    started = time.perf_counter()
    for number in range(count):
        ask(endpoint, subscriber, str(number))
    return count / (time.perf_counter() - started)


if __name__ == "__main__":
    main()
