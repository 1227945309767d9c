"""Zeek's logs over ZeroMQ into ours, and queries over them, with a recorded conn.log.

Two sockets act as the nodes of a Zeek cluster and push the records of `examples/zeek/conn.log`.
With a real cluster, name the logger in `Cluster::Backend::ZeroMQ::connect_log_endpoints`.

Run it with `python examples/zeek_logs.py`.
"""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import zmq

from callboard.commitlog.sql import open_sql
from callboard.zeek import ZeekLogger
from callboard.zeek.log_write import LogField, LogType, encode_log_write

READ: dict[str, Callable[[str], Any]] = {
    "time": float,
    "interval": float,
    "count": int,
    "port": int,
    "bool": lambda text: text == "T",
    "set[string]": lambda text: [] if text == "(empty)" else text.split(","),
}
SCANS = """
    SELECT "id.orig_h" AS source, count(DISTINCT ("id.resp_h", "id.resp_p")) AS targets
    FROM conn WHERE conn_state = 'S0' GROUP BY 1 HAVING targets > 5
"""
TALKERS = """
    SELECT sender, "id.orig_h", sum(orig_bytes + resp_bytes)::BIGINT AS bytes
    FROM conn WHERE service IS NOT NULL GROUP BY ALL ORDER BY bytes DESC LIMIT 3
"""


def field(name: str, kind: str) -> LogField:
    outer, _, inner = kind.rstrip("]").partition("[")
    return LogField(name, LogType[outer.upper()], LogType[inner.upper()] if inner else None)


def recorded(path: Path) -> tuple[list[LogField], list[list[Any]]]:
    lines = [line.split("\t") for line in path.read_text().splitlines()]
    names, types = (
        next(line[1:] for line in lines if line[0] == f"#{label}")
        for label in ("fields", "types")
    )
    rows = [
        [
            None if text == "-" else READ.get(kind, str)(text)
            for text, kind in zip(line, types, strict=True)
        ]
        for line in lines
        if not line[0].startswith("#")
    ]
    return list(map(field, names, types)), rows


def main() -> None:
    fields, rows = recorded(Path(__file__).parent / "zeek" / "conn.log")
    with tempfile.TemporaryDirectory() as folder, zmq.Context() as context:
        with ZeekLogger(folder, "127.0.0.1:0") as logger:
            for number, node in enumerate((b"worker-1", b"worker-2")):
                with context.socket(zmq.PUSH) as push:
                    push.connect(logger.address)
                    payload = encode_log_write("conn", fields, rows[number::2])
                    push.send_multipart([b"log-write", node, b"zeek-bin-v1", payload])
            while logger.stats().records < len(rows):
                time.sleep(0.01)
            print(f"{logger.stats().records} records from {len(logger.stats().nodes)} nodes")
        with open_sql({"conn": f"{folder}/conn"}) as connection:
            for source, targets in connection.sql(SCANS).fetchall():
                print(f"{source} asked at {targets} doors")
            for node, source, size in connection.sql(TALKERS).fetchall():
                print(f"{source} moved {size:,} bytes, seen by {node}")


if __name__ == "__main__":
    main()
