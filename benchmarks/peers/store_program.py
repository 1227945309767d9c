"""Stores with a package of Zeek Broker's interface: the same program for callboard and Broker.

    python store_program.py PACKAGE keeper|mirror
    python store_program.py PACKAGE put|get-master|sqlite COUNT
    python store_program.py PACKAGE get-clone|to-master|snapshot COUNT --peer PORT-OF-KEEPER
    python store_program.py PACKAGE to-clone|one COUNT --peer PORT-OF-MIRROR

A `keeper` has a master, a `mirror` attaches a clone; both listen, print their port, carry out
what they are asked by topic, and end with their stdin. The others print `rate X` at the end:
of what they do, so many a second.
"""

import argparse
import collections
import collections.abc
import importlib
import os
import select
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

collections.Iterable = collections.abc.Iterable  # Broker 1.4 was written for Python 3.9

NAME = "bench"
THERE, BACK = "/bench/there", "/bench/back"
EVENTS = "<$>/local/data/store-events/" + NAME
POLL_SECONDS = 0.001
"""Seconds between two looks whether a value is there."""

PATIENCE = 40.0
"""Seconds that anything may take."""


def main() -> None:
    """Run one role."""
    parser = argparse.ArgumentParser()
    parser.add_argument("package")
    parser.add_argument("role", choices=("keeper", "mirror", *MEASURES))
    parser.add_argument("count", type=int, nargs="?", default=0)
    parser.add_argument("--peer", type=int)
    options = parser.parse_args()
    broker = importlib.import_module(options.package)
    plain = broker.BrokerOptions()
    plain.disable_ssl = True  # on both sides: encryption is not measured
    endpoint = broker.Endpoint(broker.Configuration(plain))
    if options.role in ("keeper", "mirror"):
        serve(broker, endpoint, options.role)
    else:
        print("rate", MEASURES[options.role](broker, endpoint, options), flush=True)
    sys.stdout.flush()
    os._exit(0)  # Broker 1.4 may hang when it shuts down under way


# --- the other side ---


def serve(broker: Any, endpoint: Any, role: str) -> None:
    """Carry out orders until stdin ends."""
    store = endpoint.attach_master(NAME, broker.Backend.Memory) if role == "keeper" else None
    requests = endpoint.make_subscriber([THERE])
    print(endpoint.listen("127.0.0.1", 0), flush=True)
    while True:
        got = requests.get(0.5)
        if got is None:
            if select.select([sys.stdin], [], [], 0)[0]:
                os._exit(0)
            continue
        verb, _, argument = got[1].partition(" ")
        if verb == "clone":
            store = endpoint.attach_clone(NAME)
            await_key(store, argument)
        elif verb == "fill":
            fill(store, int(argument))
        elif verb == "await":
            await_key(store, argument)
        elif verb == "echo":
            events = endpoint.make_subscriber([EVENTS])
            endpoint.publish(BACK, got[1])
            echo(endpoint, events)
        endpoint.publish(BACK, got[1])


def echo(endpoint: Any, events: Any) -> None:
    """Publish the key of each change back, up to `end`."""
    key = ""
    while key != "end":
        key = events.get()[1][2]
        if key == "end" or key.startswith("one "):
            endpoint.publish(BACK, key)


# --- what is measured ---


def put(broker: Any, endpoint: Any, options: argparse.Namespace) -> float:
    """Put new keys into a master in memory, until a get that follows is answered."""
    master = endpoint.attach_master(NAME, broker.Backend.Memory)
    return timed(options.count, lambda part, count: put_all(master, part, count))


def put_sqlite(broker: Any, endpoint: Any, options: argparse.Namespace) -> float:
    """Put new keys into a master in a file, until they are durable, as Broker 1.4 does it."""
    with tempfile.TemporaryDirectory() as folder:
        backend: dict[str, Any] = {"path": str(Path(folder) / "bench.db")}
        if broker.__name__ != "broker":  # these are its only modes
            backend |= {"synchronous": "FULL", "journal_mode": "DELETE"}
        master = endpoint.attach_master(NAME, broker.Backend.SQLite, backend)

        def put_durably(part: str, count: int) -> None:
            put_all(master, part, count)  # Broker answers a later get when they are
            if broker.__name__ != "broker":
                master.await_idle(PATIENCE)

        return timed(options.count, put_durably)


def get_master(broker: Any, endpoint: Any, options: argparse.Namespace) -> float:
    """Get values from a master."""
    master = endpoint.attach_master(NAME, broker.Backend.Memory)
    fill(master, 1000)
    return timed(options.count, lambda _, count: get_all(master, count))


def get_clone(_broker: Any, endpoint: Any, options: argparse.Namespace) -> float:
    """Get values from a clone."""
    other = Other(endpoint, options.peer)
    other.ask("fill 1000")
    clone = endpoint.attach_clone(NAME)
    await_key(clone, "filled")
    return timed(options.count, lambda _, count: get_all(clone, count))


def to_clone(broker: Any, endpoint: Any, options: argparse.Namespace) -> float:
    """Put new keys on the master, until the last one is in a clone elsewhere."""
    master, other = with_mirror(broker, endpoint, options)

    def put_and_wait(part: str, count: int) -> None:
        for number in range(count):
            master.put(f"{part} {number}", number)
        other.ask(f"await {part} {count - 1}")

    return timed(options.count, put_and_wait)


def to_master(_broker: Any, endpoint: Any, options: argparse.Namespace) -> float:
    """Put new keys on a clone, until the last one has come back from its master."""
    other = Other(endpoint, options.peer)
    other.ask("fill 1")
    clone = endpoint.attach_clone(NAME)
    await_key(clone, "filled")

    def put_and_wait(part: str, count: int) -> None:
        for number in range(count):
            clone.put(f"{part} {number}", number)
        await_key(clone, f"{part} {count - 1}")

    return timed(options.count, put_and_wait)


def one(broker: Any, endpoint: Any, options: argparse.Namespace) -> float:
    """Put one key on the master, and wait until a remote clone reports it."""
    master, other = with_mirror(broker, endpoint, options)
    other.ask("echo")

    def put_one_by_one(part: str, count: int) -> None:
        for number in range(count):
            key = f"one {part} {number}"
            master.put(key, number)
            other.wait_for(key)

    rate = timed(options.count, put_one_by_one)
    master.put("end", 0)
    other.wait_for("end")
    return rate


def snapshot(_broker: Any, endpoint: Any, options: argparse.Namespace) -> float:
    """Attach a clone of a master with many entries, until it has them."""
    other = Other(endpoint, options.peer)
    other.ask(f"fill {options.count}")
    started = time.perf_counter()
    clone = endpoint.attach_clone(NAME)
    await_key(clone, "filled")
    took = time.perf_counter() - started
    if clone.get(f"k{options.count - 1}") != options.count - 1:
        sys.exit("the clone has not got them all")
    return options.count / took


MEASURES: dict[str, Callable[..., float]] = {
    "put": put,
    "sqlite": put_sqlite,
    "get-master": get_master,
    "get-clone": get_clone,
    "to-clone": to_clone,
    "to-master": to_master,
    "one": one,
    "snapshot": snapshot,
}


# --- steps ---


class Other:
    """The keeper or mirror, which receives orders by topic."""

    def __init__(self, endpoint: Any, port: int) -> None:
        self._endpoint = endpoint
        self._answers = endpoint.make_subscriber([BACK])
        endpoint.peer("127.0.0.1", port)
        # Broker 1.4 has no call that waits for a path.
        give_up_at = time.monotonic() + PATIENCE
        while time.monotonic() < give_up_at:
            endpoint.publish(THERE, "probe")
            if self._answers.get(0.2) is not None:
                self.ask("open")
                return
        sys.exit("the other side does not answer")

    def ask(self, request: str) -> None:
        """Ask for something, and wait until it is done."""
        self._endpoint.publish(THERE, request)
        self.wait_for(request)

    def wait_for(self, text: str) -> None:
        """Wait for one answer; earlier ones may still come before it."""
        while self._answers.get()[1] != text:
            pass


def with_mirror(broker: Any, endpoint: Any, options: argparse.Namespace) -> tuple[Any, Other]:
    """Attach a master here, and a clone at the mirror."""
    master = endpoint.attach_master(NAME, broker.Backend.Memory)
    master.put("ready", 1)
    other = Other(endpoint, options.peer)
    other.ask("clone ready")
    return master, other


def timed(count: int, act: Callable[[str, int], object]) -> float:
    """Call a function `count` times, after a tenth of that as warm-up; return the rate."""
    act("warm", max(count // 10, 1))
    started = time.perf_counter()
    act("run", count)
    return count / (time.perf_counter() - started)


def fill(store: Any, count: int) -> None:
    """Put entries, the last one under `filled`."""
    for number in range(count):
        store.put(f"k{number}", number)
    store.put("filled", 1)
    await_key(store, "filled")


def put_all(store: Any, part: str, count: int) -> None:
    """Put new keys, and get the last one."""
    for number in range(count):
        store.put(f"{part} {number}", number)
    if store.get(f"{part} {count - 1}") != count - 1:
        sys.exit("the last key is not there")


def get_all(store: Any, count: int) -> None:
    """Get a number of values."""
    for number in range(count):
        store.get(f"k{number % 1000}")


def await_key(store: Any, key: str) -> None:
    """Wait until a key has a value."""
    give_up_at = time.monotonic() + PATIENCE
    while time.monotonic() < give_up_at:
        try:
            if store.get(key) is not None:
                return
        except TimeoutError:  # a clone without its first snapshot: ask again
            continue
        except Exception as error:
            if type(error).__name__ != "NoSuchMaster":
                raise
        time.sleep(POLL_SECONDS)
    sys.exit(f"{key} did not come")


if __name__ == "__main__":
    main()
