"""The node that a command starts: its port, its links, and its end."""

import contextlib
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Final

from callboard.backoff import is_reached
from callboard.cli.cli_error import FAILED, CliError, UsageError
from callboard.cli.options import AccessOptions, flag, option
from callboard.support.dataclass import dataclass

if TYPE_CHECKING:
    from callboard.node import Node
    from callboard.pages import Page, PageServer
    from callboard.topics.hub import Hub

#: Name of the node of commands about topics.
TOPIC_NODE: Final = "callboard topic"

#: Timeout for confirmations in seconds; nodes confirm once per second.
CONFIRM_LIMIT: Final = 10.0

#: Seconds between checks for confirmations.
_CONFIRM_POLL_SECONDS: Final = 0.01

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


#: Longest time in seconds after which a signal is noticed. One that arrives just before the
#: main thread blocks does not interrupt it: its handler runs when the thread runs again.
SIGNAL_SECONDS: Final = 0.5


class SignalEvent(threading.Event):
    """An event that a signal handler may set while its own thread waits for it.

    `threading.Event` takes a lock in `wait` and in `set`. A signal that arrives at this moment
    of `wait` runs its handler on the same thread, where `set` would wait for the lock for ever.
    And it blocks until it is woken, so that a signal just before this is not noticed.
    """

    def __init__(self) -> None:
        super().__init__()
        self._is_set = False
        #: Held until the event is set. The interpreter runs signal handlers while it waits.
        self._closed = threading.Lock()
        self._closed.acquire()

    def is_set(self) -> bool:
        """Return whether the event was set."""
        return self._is_set

    def set(self) -> None:
        """Set the event, and wake all threads that wait."""
        if not self._is_set:
            self._is_set = True
            with contextlib.suppress(RuntimeError):  # another thread has set it, too
                self._closed.release()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the event is set; return False after `timeout` seconds."""
        end = math.inf if timeout is None else time.monotonic() + timeout
        while not self._is_set:
            left = end - time.monotonic()
            if self._closed.acquire(timeout=min(max(0.0, left), SIGNAL_SECONDS)):
                self._closed.release()
            elif left <= 0:
                break
        return self._is_set


@contextlib.contextmanager
def catch_signals() -> Iterator[threading.Event]:
    """Yield an event that the first signal sets; the second signal ends the process.

    It also covers the set-up. The second signal works whatever a handler does: it exits at once
    without closing anything, and other nodes see the links break.
    """
    stop = SignalEvent()

    def ask_to_stop(_number: int, _frame: FrameType | None) -> None:
        if stop.is_set():
            os.write(2, b"callboard: ended by a second signal; one lets it finish first\n")
            os._exit(FAILED)
        stop.set()

    previous = {number: signal.signal(number, ask_to_stop) for number in SIGNALS}
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def open_port(node: "Node", listen: str, *, insecure: bool) -> None:
    """Open a port of a node.

    Raises:
        CliError: the port is in use, or the address is not local.
    """
    address, port = parse_listen(listen)
    with opening(listen):
        node.listen(address, port, insecure=insecure)


def parse_listen(text: str) -> tuple[str, int]:
    """Return the arguments of `node.listen` for `HOST:PORT` or `unix:/PATH`.

    Raises:
        CliError: the text has another form.
    """
    from callboard.configuration import host_port

    try:
        return host_port.parse_listen(text)
    except ValueError as error:
        reason = f"{text!r} is not HOST:PORT"
        raise UsageError(why=reason, step="write it like --listen 127.0.0.1:4222") from error


@contextlib.contextmanager
def opening(
    address: str, *, what: str = "listen on", option: str = "--listen"
) -> Iterator[None]:
    """Turn the failure to open a port into one line.

    Args:
        address: the address of the port.
        what: action on it, for the error text.
        option: the option with the address.
    """
    try:
        yield
    except OSError as error:
        reason = f"cannot {what} {address}: {error.strerror or error}"
        step = f"choose another {option} HOST:PORT; port 0 picks a free one"
        raise CliError(why=reason, step=step) from error


@dataclass(frozen=True, kw_only=True)
class JoinOptions(AccessOptions):
    """Membership of a command's node in a cluster with topics.

    Attributes:
        timeout: seconds for each peer, and for subscribers to appear.
    """

    peer: list[str] | None = option(
        None, "basp://HOST:PORT of a node; repeatable.", "--peer", metavar="ADDRESS"
    )
    listen: str = option(
        "", "Address of this node for others; port 0 picks a free one.", metavar="HOST:PORT"
    )
    insecure: bool = flag("Listen on public addresses without secret or TLS.", "--insecure")
    timeout: float = 10.0
    as_json: bool = flag("Print JSON lines.", "--json")

    @contextlib.contextmanager
    def hub(self) -> Iterator["Hub"]:
        """Run a node with topics; it has no links yet.

        Raises:
            CliError: neither a peer nor a port is given.
        """
        if not self.peer and not self.listen:
            reason = "there is no node to exchange messages with"
            raise UsageError(
                why=reason, step="use --peer basp://HOST:PORT or --listen HOST:PORT"
            )
        if self.listen:
            parse_listen(self.listen)
        from callboard.topics.hub import Hub

        with self.open_node(TOPIC_NODE) as node:
            hub = Hub.of(node)
            if self.listen:
                open_port(node, self.listen, insecure=self.insecure)
                self.say({"address": node.address}, f"listens on {node.address}", err=True)
            yield hub

    def link(self, hub: "Hub") -> None:
        """Connect to the peers; lost links are restored."""
        for address in self.peer or ():
            hub.node.connect(address, self.timeout or 1.0)


@dataclass(frozen=True, kw_only=True)
class DashboardOptions(AccessOptions):
    """The cluster to show, the address, and the permitted actions."""

    join: list[str] | None = option(
        None,
        "A node of the cluster; repeatable (basp://127.0.0.1:4222).",
        metavar="ADDRESS",
    )
    listen: str = option("127.0.0.1:0", "Address for browsers.", metavar="HOST:PORT")
    host: list[str] | None = option(
        None, "A host name for browsers; repeatable.", metavar="NAME"
    )
    allow_actions: bool = flag(
        "Permit stopping actors, sending, publishing, and writing to stores.",
        "--allow-actions",
    )
    app: Path | None = option(
        None, "File that registers the message types.", "--app", metavar="APP.py"
    )
    page_tls: Path | None = option(
        None, "Folder with certificate.pem and key.pem for browsers.", metavar="FOLDER"
    )
    insecure: bool = flag("Listen on a public address without TLS.", "--insecure")
    timeout: float = option(10.0, "Seconds to reach each node.", min=0.001)
    as_json: bool = flag("Print the link as JSON.", "--json")


METRICS_HOST: Final = "A host name for --metrics; repeatable."


def open_metrics(
    listen: str, hosts: Sequence[str] | None, page: "Callable[[], Page]"
) -> "PageServer":
    """Serve `/metrics` of a command without a node for it.

    Args:
        listen: `HOST:PORT`.
        hosts: host names, besides the default ones.
        page: makes the page.

    Raises:
        CliError: the port cannot be opened.
    """
    from callboard.pages import PageServer

    with opening(listen, what="serve metrics at", option="--metrics"):
        return PageServer(
            {"/metrics": page},
            *parse_listen(listen),
            hosts=tuple(hosts or ()),
            option="--metrics-host",
        )


def confirm(hub: "Hub") -> None:
    """Wait until every node has confirmed the messages sent to it.

    Raises:
        CliError: a message is lost or unconfirmed.
    """
    hub.receivers_of("").result(CONFIRM_LIMIT)  # queued after all published messages

    def are_confirmed() -> bool:
        return not any(account.in_flight for account in hub.node.accounts().values())

    if not is_reached(are_confirmed, _CONFIRM_POLL_SECONDS, CONFIRM_LIMIT):
        reason = f"some messages were not confirmed within {CONFIRM_LIMIT:g} s"
        raise CliError(why=reason, step="see the logs of the nodes that subscribe")
    lost = sum(account.lost for account in hub.node.accounts().values())
    if lost or hub.counters.dropped:
        reason = "some messages are lost or unconfirmed: a link or a node was lost"
        raise CliError(why=reason, step="publish them again when it is back")
