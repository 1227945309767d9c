"""Back at a Zeek: from its port being open again until a subscriber has its next event.

Ours alone: three Zeeks over WebSocket JSON at one endpoint, played by ports of ours that
publish a recorded event; one is cut and comes back half a second later, which is as long as the
pause between two attempts gets. The time includes connecting, the filter and its ack. That
nothing comes twice, and nothing of the two others is missed, is checked in the same run.
"""

import socket
import time

from benchmarks.measure import Measure, Subject
from benchmarks.processes import RunFailedError
from callboard import Endpoint
from callboard.broker import zeek

TOPIC = "/zeek/event"
WAIT = 10.0
CUT = 0.5
"""Seconds without the Zeek."""

ROUNDS = 3


def _zeek(port: int) -> Endpoint:
    """Return a Zeek at a port; one that was just closed may need a moment."""
    made = Endpoint()
    made.listen_web_socket("127.0.0.1", port)
    return made


def _free_ports(count: int) -> list[int]:
    """Return free ports."""
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def milliseconds_to_return(_share: float = 1.0) -> float:
    """Return milliseconds; the mean of some cuts.

    Raises:
        RunFailedError: an event came twice, or did not come.
    """
    ports = _free_ports(3)
    zeeks = [_zeek(port) for port in ports]
    spent, number = 0.0, 0
    with Endpoint() as endpoint, endpoint.make_subscriber("/zeek") as subscriber:
        for port in ports:
            endpoint.connect_web_socket(f"ws://127.0.0.1:{port}")
        for _ in range(ROUNDS):
            zeeks[1].shutdown()
            time.sleep(CUT)
            zeeks[1] = _zeek(ports[1])
            began = time.perf_counter()
            if not zeeks[1].await_filter_entry("/zeek", WAIT):
                msg = "the filter did not come back"
                raise RunFailedError(msg)
            expected = []
            for index in (1, 0, 2):
                number += 1
                zeeks[index].publish(TOPIC, zeek.Event("Test::ping", index, number))
                expected.append((index, number))
                if index == 1:
                    got = [_read(subscriber)]
                    spent += time.perf_counter() - began
            got += [_read(subscriber) for _ in range(2)]
            if sorted(got) != sorted(expected) or subscriber.available():
                msg = f"events {expected} came as {got}"
                raise RunFailedError(msg)
    for each in zeeks:
        each.shutdown()
    return spent / ROUNDS * 1_000


def _read(subscriber: object) -> tuple[int, int]:
    """Return which Zeek published the next event, and its number."""
    told = subscriber.get(WAIT)  # type: ignore[attr-defined]
    return (-1, -1) if told is None else tuple(zeek.Event(told[1]).args())


MEASURE = Measure(
    title="back at one of three Zeeks",
    unit="ms",
    more_is_better=False,
    subjects=(Subject("callboard, three Zeeks", milliseconds_to_return),),
)
