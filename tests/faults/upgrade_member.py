"""A member of a cluster that is upgraded: a program for release 0.1 and for later ones.

Its argument is a JSON object: `name`, `port`, `join` (the addresses of other members),
`folder`, `duties`, and `node` (more options of the node). Each member hosts ledgers on one
SQLite file. Duties are `store` (the master of a store), `log` (a served log) and `mqtt` (a
router with a journal, at `mqtt_port`). The member prints a line when it is ready. SIGTERM
drains and stops it.
"""

import json
import signal
import sys
import threading
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from callboard import Entity, Node, event, handler, message
from callboard.broker import Backend, Endpoint
from callboard.mqtt import ListenerSettings, Router, RouterConfig


@message("upgrade.Entry")
@dataclass(frozen=True)
class Entry:
    number: int


class Ledger(Entity):
    """Keeps the numbers that it was sent."""

    name = "upgrade.Ledger"

    def __init__(self) -> None:
        self.numbers: list[int] = []

    @handler
    def on_entry(self, msg: Entry) -> int:
        self.persist(msg)
        return len(self.numbers)

    @event
    def on_kept(self, event: Entry) -> None:
        self.numbers.append(event.number)

    @handler(read_only=True)
    def on_text(self, msg: str) -> list[int]:
        return self.numbers


def main() -> None:
    """Run until SIGTERM."""
    options = json.loads(sys.argv[1])
    folder, duties = Path(options["folder"]), options["duties"]
    arguments: dict[str, Any] = {"join": options["join"], **options["node"]}
    if "log" in duties:
        arguments["serve_logs"] = {"meters": str(folder / "meters")}
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    with ExitStack() as stack:
        node = stack.enter_context(Node(options["name"], **arguments))
        endpoint = stack.enter_context(Endpoint(node=node))
        if "store" in duties:
            endpoint.attach_master("things", Backend.SQLite, {"path": str(folder / "things")})
        node.host(Ledger, state=f"sqlite:{folder / 'ledgers.db'}")
        if "mqtt" in duties:
            listeners = (ListenerSettings(f"127.0.0.1:{options['mqtt_port']}"),)
            router = RouterConfig(directory=str(folder / "mqtt"), listeners=listeners)
            stack.enter_context(Router(router))
        node.listen("127.0.0.1", options["port"])
        print("ready", flush=True)
        stopped.wait()
        node.drain()


if __name__ == "__main__":
    main()
