"""A worker: a node in a child process, on another core.

    python -m callboard.proxies.worker_process CONTROL LINK

Both arguments are descriptors of socket pairs that the parent process made. No other process
can connect to them, and no file is left when the processes end. LINK becomes the link to the
parent's node. CONTROL carries lines of JSON: first the configuration of the worker, then the
classes to offer. Classes are received only this way, from the process that started the worker;
no node can make it import anything.

The worker ends when CONTROL ends, which happens when the parent closes it or dies in any way.
It also ends when the parent's node is lost, in case another process holds the other end of
CONTROL. A separate thread reads CONTROL, so the worker ends in time even if it is executing the
file of a class, which may take long.
"""

import contextlib
import importlib
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from queue import SimpleQueue
from typing import IO, Any, Final

from callboard import locks
from callboard.actors.values import Event
from callboard.proxies.events import LinkUp
from callboard.proxies.link.limits import Limits
from callboard.proxies.node import Node
from callboard.proxies.workers.class_source import ClassSource, load_class
from callboard.support.text import describe

#: Seconds after which the process ends even if a handler does not return.
LAST_SECONDS: Final = 2.0


def main() -> None:
    """Run a node until the parent's end of the control socket closes."""
    # A Ctrl-C is for the parent, which ends its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    control, link = (socket.socket(fileno=int(number)) for number in sys.argv[1:3])
    for sock in (control, link):
        sock.set_inheritable(False)  # processes started by users must not keep them open
    lines = control.makefile("r", encoding="utf-8")
    first = lines.readline()
    if not first:
        return
    about = json.loads(first)
    _restore_path(about["python_path"])
    report = _Reporter(control)
    orders: SimpleQueue[str] = SimpleQueue()
    threading.Thread(target=follow, args=(lines, orders), daemon=True).start()
    offers = {key: load(key, source, report) for key, source in about["offers"].items()}
    offered = {key: loaded for key, loaded in offers.items() if loaded is not None}
    module, _, name = about["class"].partition(":")
    node_class = getattr(importlib.import_module(module), name)
    with node_class(about["name"], spawnable=offered, limits=Limits(**about["limits"])) as node:
        serve(node, link, orders, report, bytes.fromhex(about["parent"]))


def follow(lines: IO[str], orders: "SimpleQueue[str]") -> None:
    """Queue the lines of the parent; soon after their end, force the process to end."""
    with contextlib.suppress(OSError):  # a reset means that the parent died
        for line in lines:
            orders.put(line)
    orders.put("")
    time.sleep(LAST_SECONDS)
    os._exit(1)


class _Reporter:
    """Sends reports to the parent. Can be used from any thread."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._lock = locks.lock("control of a worker process", 621)

    def __call__(self, **report: str) -> None:
        with self._lock, contextlib.suppress(OSError):  # if the parent is gone, `serve` ends
            self._control.sendall(json.dumps(report).encode() + b"\n")

    def end(self, _: object = None) -> None:
        """Close the control socket, which ends the process."""
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)


def serve(
    node: Node,
    link: socket.socket,
    orders: "SimpleQueue[str]",
    report: _Reporter,
    parent: bytes,
) -> None:
    """Link with the parent, then offer the classes it sends until it closes."""

    def note(event: Event) -> None:
        if isinstance(event, LinkUp) and event.peer == parent:
            node.monitor_node(parent).add_done_callback(report.end)
            report(node=node.node_id.hex())

    with node.subscribed(note):
        node.adopt(link, dialer=True)
        for line in iter(orders.get, ""):
            key, *source = json.loads(line)
            loaded = load(key, source, report)
            if loaded is not None:
                node.offer(key, loaded)
                report(offered=key)


def load(key: str, source: Sequence[str], report: _Reporter) -> Any:
    """Load a class; report a failure to the parent."""
    try:
        return load_class(ClassSource(*source))
    except BaseException as error:  # noqa: BLE001  # a user's module may raise anything
        report(refused=key, why=describe(error))
        return None


def _restore_path(python_path: str | None) -> None:
    """Restore PYTHONPATH for processes that users start.

    The parent had changed it so that the worker finds callboard's modules.
    """
    if python_path is None:
        os.environ.pop("PYTHONPATH", None)
    else:
        os.environ["PYTHONPATH"] = python_path


if __name__ == "__main__":
    main()
