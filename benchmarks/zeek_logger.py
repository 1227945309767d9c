"""Zeek's log-writes into the commit log: conn.log, 21 fields, in batches of 400 as Zeek's are.

A separate process pushes; the time ends when all records are appended, and with callboard The
peer is a plain PULL of pyzmq that counts messages: what the sockets alone take.
"""

import tempfile
import time
from collections.abc import Callable
from multiprocessing import get_context

import zmq

from benchmarks.log_append import check
from benchmarks.measure import Measure, Subject
from callboard.commitlog import LogReader
from callboard.zeek.doors.zeek_logger import ZeekLogger
from callboard.zeek.log_write import LogField, LogType, encode_log_write

RECORDS = 200_000
BATCH = 400
_COUNTS = "missed_bytes orig_bytes resp_bytes orig_pkts orig_ip_bytes resp_pkts resp_ip_bytes"
_KINDS = {
    LogType.TIME: "ts",
    LogType.ADDR: "id.orig_h id.resp_h",
    LogType.PORT: "id.orig_p id.resp_p",
    LogType.ENUM: "proto",
    LogType.INTERVAL: "duration",
    LogType.BOOL: "local_orig local_resp",
    LogType.COUNT: _COUNTS,
    LogType.SET: "tunnel_parents",
}
_TYPES = {name: kind for kind, names in _KINDS.items() for name in names.split()}
_NAMES = (
    "ts uid id.orig_h id.orig_p id.resp_h id.resp_p proto service duration orig_bytes"
    " resp_bytes conn_state local_orig local_resp missed_bytes history orig_pkts orig_ip_bytes"
    " resp_pkts resp_ip_bytes tunnel_parents"
)
CONN = [
    LogField(name, kind, LogType.STRING if kind is LogType.SET else None)
    for name in _NAMES.split()
    for kind in [_TYPES.get(name, LogType.STRING)]
]


def row(number: int) -> tuple[object, ...]:
    """Return a connection; each 8th has no answer."""
    about = (1.79e9 + number / 1000, f"C{number:017d}", f"10.0.{number % 250}.{number % 200}")
    ends = ((1024 + number % 60_000, 1), "192.0.2.7", (443, 1), "tcp")
    if number % 8:
        told = ("ssl", 0.5, 1000 + number, 2000 + number, "SF", True, False, 0, "ShADadFf")
        return (*about, *ends, *told, 10, 1500, 12, 2500, [])
    return (*about, *ends, None, None, None, None, "S0", True, False, 0, "S", 1, 60, 0, 0, [])


def push(address: str, messages: int, batch: int) -> None:
    """Write equal batches."""
    payload = encode_log_write("conn", CONN, [row(number) for number in range(batch)])
    parts = [b"log-write", b"zeromq_worker-1_host_1_N", b"zeek-bin-v1", payload]
    with zmq.Context() as context, context.socket(zmq.PUSH) as socket:
        socket.connect(address)
        for _ in range(messages):
            socket.send_multipart(parts)


def pushed(address: str, records: int, batch: int, arrived: Callable[[int], object]) -> float:
    """Push from another process; return records per second from the first one on."""
    messages = records // batch
    node = get_context("spawn").Process(target=push, args=(address, messages, batch))
    node.start()
    arrived(1)
    started = time.perf_counter()
    arrived(messages)
    taken = time.perf_counter() - started
    node.join()
    return (messages - 1) * batch / taken


def ours(batch: int, share: float) -> float:
    """Return records for each second into the log."""
    records = int(RECORDS * share) // batch * batch
    with tempfile.TemporaryDirectory() as folder:
        with ZeekLogger(folder, "127.0.0.1:0") as logger:

            def arrived(messages: int) -> None:
                while logger.stats().records < messages * batch:
                    time.sleep(0.002)
                logger.flush()

            figure = pushed(logger.address, records, batch, arrived)
        check(LogReader(f"{folder}/conn").end, records)
    return figure


def in_batches(share: float = 1.0) -> float:
    """Return records for each second, in messages of 400."""
    return ours(BATCH, share)


def one_by_one(share: float = 1.0) -> float:
    """Return records a second, with one record in each message."""
    return ours(1, share / 4)


def plain(share: float = 1.0) -> float:
    """Return records for each second that a PULL receives and drops."""
    with zmq.Context() as context, context.socket(zmq.PULL) as socket:
        port = socket.bind_to_random_port("tcp://127.0.0.1")
        seen = 0

        def arrived(messages: int) -> None:
            nonlocal seen
            while seen < messages:
                socket.recv_multipart()
                seen += 1

        return pushed(f"tcp://127.0.0.1:{port}", int(RECORDS * share), BATCH, arrived)


MEASURE = Measure(
    title="Zeek's log-writes (conn.log) into the commit log",
    unit="records/s",
    subjects=(
        Subject("callboard, batches of 400", in_batches),
        Subject("callboard, one by one", one_by_one),
        Subject("pyzmq PULL that only counts", plain, against="callboard, batches of 400"),
    ),
)
