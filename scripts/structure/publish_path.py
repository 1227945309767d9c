"""The way of an MQTT PUBLISH through the router, file by file.

A router runs in this process with one publisher and one subscriber on TCP sockets, and
`sys.setprofile` reports each call on the threads of the router. The way of a PUBLISH starts
with the system call that reads its bytes, and ends with the one that writes the last bytes that
it causes: the bytes for the subscriber or, with QoS 1, the PUBACK, whichever is later. The
poller and its dispatch before, and all work after, do not count.

- A *call* is an entered Python function of ours, including a resumed coroutine or generator.
  Calls of the standard library do not count. A return from a call into the file of the caller
  does not count either: a file that calls ten functions in one other file makes two stays, not
  twenty.
- A *stay* is a run of calls in one file.
- A *return* is a stay in a file that was left before, so `returns = stays - files`.

For QoS 1 the way up to the subscriber's bytes is also counted alone, as
`publish_qos_1_delivery`. Other work of the router, such as a timer, may happen during a PUBLISH
and adds calls. Therefore several messages are sent, and the shortest way counts.
"""

import argparse
import socket
import sys
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from types import FrameType
from typing import Any, Final, Self

from callboard.mqtt import Router
from scripts.structure.figure import Figure
from scripts.structure.limits import Limits
from scripts.structure.source import ROOMS

ROOT: Final = Path(__file__).resolve().parents[2]

REPEATS: Final = 10
"""PUBLISHes of each QoS, of which the shortest way counts."""

READS: Final = frozenset({"read", "readv", "recv", "recv_into", "recvfrom", "recvmsg"})
WRITES: Final = frozenset({"write", "writev", "send", "sendall", "sendmsg", "sendto"})

CONNECT: Final = bytes.fromhex("10 0d 0004 4d515454 04 02 003c 0001")
"""MQTT 3.1.1, a clean session, 60 s keep-alive; an identifier of one byte follows."""
CONNACK: Final = bytes.fromhex("20 02 00 00")
SUBSCRIBE: Final = bytes.fromhex("82 08 0001 0003 612f62 01")
SUBACK: Final = bytes.fromhex("90 03 0001 01")
PUBLISH_QOS_0: Final = bytes.fromhex("30 06 0003 612f62 78")
PUBLISH_QOS_1: Final = bytes.fromhex("32 08 0003 612f62")
PINGREQ: Final = bytes.fromhex("c0 00")
PINGRESP: Final = bytes.fromhex("d0 00")
PUBACK: Final = bytes.fromhex("40 02")


@dataclass(frozen=True)
class Call:
    """A function that was entered."""

    file: str
    function: str


@dataclass(frozen=True)
class Way:
    """The calls of one PUBLISH, from the read of its bytes to a write."""

    calls: tuple[Call, ...]

    @property
    def stays(self) -> list[tuple[str, list[str]]]:
        """The files in the order in which they are entered, each with its calls."""
        runs = groupby(self.calls, key=lambda call: call.file)
        return [(file, [call.function for call in run]) for file, run in runs]

    @property
    def files(self) -> int:
        """The number of files."""
        return len({call.file for call in self.calls})

    @property
    def returns(self) -> int:
        """The number of stays in a file that was left before."""
        return len(self.stays) - self.files

    def __str__(self) -> str:
        lines = [f"{len(self.stays)} stays in {self.files} files, {self.returns} returns"]
        seen: set[str] = set()
        for number, (file, functions) in enumerate(self.stays, 1):
            mark = "return" if file in seen else ""
            lines.append(f"{number:4} {mark:6} {file}: {', '.join(functions)}")
            seen.add(file)
        return "\n".join(lines)


class Recorder:
    """Sees the calls on all threads that are started while it is installed."""

    def __init__(self) -> None:
        """Record nothing yet."""
        self._events: list[Call | str] = []
        self._files: dict[str, str | None] = {}

    def __enter__(self) -> Self:
        threading.setprofile(self._see)
        return self

    def __exit__(self, *_: object) -> None:
        threading.setprofile(None)

    def clear(self) -> None:
        """Forget the recorded events."""
        self._events.clear()

    def way(self, writes: int) -> Way:
        """Return the way from the first read to the given number of writes."""
        events = self._events
        # The frame that reads was entered before it did.
        first = next(at for at, event in enumerate(events) if event == "read")
        start = max(at for at in range(first) if isinstance(events[at], Call))
        written = [at for at, event in enumerate(events) if event == "write" and at > first]
        return Way(
            tuple(
                each for each in events[start : written[writes - 1]] if isinstance(each, Call)
            )
        )

    def _see(self, frame: FrameType, event: str, argument: Any) -> None:
        if event not in ("call", "c_call"):
            return
        file = self._file(frame.f_code.co_filename)
        if file is None:
            return
        if event == "call":
            self._events.append(Call(file, frame.f_code.co_name))
        elif argument.__name__ in READS:
            self._events.append("read")
        elif argument.__name__ in WRITES:
            self._events.append("write")

    def _file(self, name: str) -> str | None:
        """Return the path of a file of ours in the checkout; None for any other."""
        if name not in self._files:
            path = Path(name).resolve()
            is_ours = path.is_relative_to(ROOT) and path.relative_to(ROOT).parts[0] in ROOMS
            self._files[name] = path.relative_to(ROOT).as_posix() if is_ours else None
        return self._files[name]


class Client:
    """An MQTT client that sends and expects bytes."""

    def __init__(self, port: int, client_id: bytes) -> None:
        """Connect."""
        self._socket = socket.create_connection(("127.0.0.1", port), 10)
        self.send(CONNECT + client_id)
        self.expect(CONNACK)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send(self, data: bytes) -> None:
        """Send bytes."""
        self._socket.sendall(data)

    def expect(self, data: bytes) -> None:
        """Receive exactly these bytes."""
        received = b""
        while len(received) < len(data):
            more = self._socket.recv(len(data) - len(received))
            if not more:
                break
            received += more
        if received != data:
            message = f"expected {data.hex(' ')}, received {received.hex(' ')}"
            raise ConnectionError(message)

    def synchronize(self) -> None:
        """Return when the router has handled all that was sent before."""
        self.send(PINGREQ)
        self.expect(PINGRESP)


def measure_ways() -> dict[str, Way]:
    """Return the shortest way of a PUBLISH for each name of a figure."""
    ways: dict[str, list[Way]] = {}
    with (
        Recorder() as recorder,
        Router() as router,
        Client(router.port, b"s") as subscriber,
        Client(router.port, b"p") as publisher,
    ):
        subscriber.send(SUBSCRIBE)
        subscriber.expect(SUBACK)
        for number in range(1, REPEATS + 1):
            recorder.clear()
            publisher.send(PUBLISH_QOS_0)
            subscriber.expect(PUBLISH_QOS_0)
            ways.setdefault("publish_qos_0", []).append(recorder.way(writes=1))
            publisher.synchronize()

            identifier = number.to_bytes(2)
            publish = PUBLISH_QOS_1 + identifier + b"x"
            recorder.clear()
            publisher.send(publish)
            subscriber.expect(publish)
            publisher.expect(PUBACK + identifier)
            ways.setdefault("publish_qos_1_delivery", []).append(recorder.way(writes=1))
            ways.setdefault("publish_qos_1", []).append(recorder.way(writes=2))
            subscriber.send(PUBACK + identifier)
            subscriber.synchronize()
    return {name: min(each, key=lambda way: len(way.calls)) for name, each in ways.items()}


def figures_of(ways: dict[str, Way]) -> Iterable[Figure]:
    """Yield stays and returns of each way, to be compared with their limits."""
    for name, way in ways.items():
        yield Figure(f"{name}_stays", len(way.stays), "runs of calls in one file")
        yield Figure(f"{name}_returns", way.returns, "stays in a file that was left before")


def main() -> int:
    """Print the ways; return 1 if one is longer than its limit."""
    parser = argparse.ArgumentParser(prog="python -m scripts.structure.publish_path")
    parser.add_argument("--tighten", action="store_true", help="write better figures as limits")
    options = parser.parse_args()

    ways = measure_ways()
    for name, way in ways.items():
        print(f"{name}: {way}\n")
    figures = list(figures_of(ways))
    limits = Limits()
    if options.tighten:
        limits.tighten(figures)
    print(*limits.failures(figures), sep="\n", end="")
    return bool(limits.failures(figures))


if __name__ == "__main__":
    sys.exit(main())
