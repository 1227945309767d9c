"""Discovery: addresses of nodes from DNS names and files, looked up repeatedly.

A source is looked up when it is added, then every ten seconds; a file every second. New
addresses are dialed and kept like addresses in `join`. An address that disappears is no longer
dialed, but an established link stays until it ends. If a look-up fails, the last result stays
valid, so that the loss of a name server does not split a cluster. The node's own address is
skipped, because a name shared by many nodes includes it.
"""

import contextlib
import logging
import socket
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import Any, Final

from callboard.actors.errors import CallboardError, InvalidAddress, NodeUnreachable
from callboard.actors.future import Future
from callboard.actors.runner.runner import Runner
from callboard.actors.runner.timers import Timer
from callboard.actors.values import Event
from callboard.proxies.address import Endpoint, NodeSource, endpoint_text, parse_node_address
from callboard.proxies.events import AddressesChanged, LookUpFailed
from callboard.proxies.link.dialer import LAST_RETRY, Dial, Dialer
from callboard.proxies.link.network import Network
from callboard.support.dataclass import dataclass

_log = logging.getLogger("callboard.links")

#: Seconds between look-ups of a name.
INTERVAL: Final = 10.0

#: Seconds between checks of a file.
FILE_INTERVAL: Final = 1.0

#: Addresses of one source, and bytes of a file, at most.
MOST: Final = (1_024, 1 << 20)


@dataclass(eq=False)
class KnownSource:
    """A source, and the result of its last look-up."""

    source: NodeSource
    #: Done with the id of the first linked node; unused if no caller waits.
    first: Future[bytes]
    addresses: tuple[Endpoint, ...] = ()
    #: Errors of the last look-up and of the last dial; empty after a success.
    error: str = ""
    refusal: str = ""
    #: Number of look-ups that succeeded.
    reads: int = 0
    timer: Timer | None = None
    is_closed: bool = False
    #: Addresses at which this node itself answered.
    own: set[Endpoint] = field(default_factory=set)


@dataclass(eq=False, repr=False)
class Discovery:
    """The sources of one node. Its methods run on the thread with the runner's role."""

    _runner: Runner
    _network: Network
    _dialer: Dialer
    #: Whether this node listens at an address.
    _is_own: Callable[[Endpoint], bool]
    _report: Callable[[Event], object]
    _sources: list[KnownSource] = field(default_factory=list)
    #: Number of sources that each address is dialed for.
    _use_counts: Counter[Endpoint] = field(default_factory=Counter)

    def add(self, source: NodeSource, first: Future[bytes]) -> KnownSource:
        """Start following a source."""
        watched = KnownSource(source, first)
        self._sources.append(watched)
        self._read_source(watched)
        return watched

    def remove(self, watched: KnownSource) -> None:
        """Stop following a source, and stop the dials of its addresses."""
        watched.is_closed = True
        if watched.timer is not None:
            watched.timer.cancel()
        if watched in self._sources:
            self._sources.remove(watched)
        self._update_dials(watched, ())

    def close(self) -> None:
        """Stop all look-ups; the dialer ends the dials."""
        for watched in self._sources:
            watched.is_closed = True
            if watched.timer is not None:
                watched.timer.cancel()
        self._sources.clear()

    @property
    def is_alone(self) -> bool:
        """Whether there are sources, all were looked up, and none names another node."""
        return bool(self._sources) and all(
            watched.reads and not watched.error and not watched.addresses
            for watched in self._sources
        )

    # --- look-ups ---

    def _read_source(self, watched: KnownSource) -> None:
        """Update a source: read a file at once, or resolve a name on a separate thread."""
        source = watched.source
        if watched.is_closed:
            return
        if source.kind == "file":
            self._resolved(watched, *_outcome(lambda: read_addresses(Path(source.where))))
            return
        if source.kind == "dns":
            results = self._network.resolve(source.where, source.port, numeric=True)
            if results is not None:
                self._resolved(
                    watched, [_endpoint(result, source.port) for result in results], ""
                )
                return

        def find() -> list[Endpoint]:
            if source.kind == "srv":
                return find_services(source.where)
            results = self._network.resolve(source.where, source.port, numeric=False) or ()
            return [_endpoint(result, source.port) for result in results]

        threading.Thread(
            target=lambda: self._runner.post(self._resolved, watched, *_outcome(find)),
            name="callboard-discovery",
            daemon=True,
        ).start()

    def _resolved(self, watched: KnownSource, addresses: list[Endpoint], error: str) -> None:
        """Apply the result of a look-up, and schedule the next one."""
        if watched.is_closed:
            return
        text = watched.source.text
        if error and error != watched.error:
            warning = "%s: %s; it is looked up again, and the last result stays valid"
            _log.warning(warning, text, error)
            self._report(LookUpFailed(text, error))
        watched.error = error
        if not error:
            watched.reads += 1
            limit = MOST[0]
            if len(addresses) > limit:
                _log.warning(
                    "%s has %d addresses; the first %d are used", text, len(addresses), limit
                )
            watched.own &= set(addresses)
            self._update_dials(watched, tuple(dict.fromkeys(addresses[:limit])))
        seconds = FILE_INTERVAL if watched.source.kind == "file" else INTERVAL
        watched.timer = self._runner.call_later(seconds, self._read_source, watched)

    def _update_dials(self, watched: KnownSource, addresses: tuple[Endpoint, ...]) -> None:
        """Dial the new addresses of a source, and stop dialing those it no longer has."""
        candidates = [
            endpoint
            for endpoint in addresses
            if not (endpoint in watched.own or self._is_own(endpoint))
        ]
        added = [endpoint for endpoint in candidates if endpoint not in watched.addresses]
        removed = [endpoint for endpoint in watched.addresses if endpoint not in candidates]
        watched.addresses = tuple(candidates)
        for endpoint in added:
            self._dial(watched, endpoint)
        for endpoint in removed:
            self._give_up(endpoint)
        if added or removed:
            texts = [tuple(map(endpoint_text, group)) for group in (added, removed)]
            _log.info("%s: new %s, gone %s", watched.source.text, *texts)
            self._report(AddressesChanged(watched.source.text, *texts))

    # --- dialing ---

    def _dial(self, watched: KnownSource, endpoint: Endpoint) -> None:
        """Dial an address while its source has it, unless the user dials it already."""
        dial = self._dialer.find(endpoint)
        is_ours = self._use_counts[endpoint] > 0
        if is_ours or dial is None or not dial.keep:
            self._use_counts[endpoint] += 1
        waiter: Future[Dial] = Future()
        waiter.add_done_callback(partial(self._linked, watched))
        failed = partial(self._failed, watched, endpoint)
        self._dialer.dial(endpoint, waiter, retry=LAST_RETRY, on_failure=failed)
        dial = self._dialer.find(endpoint)
        if dial is not None and watched.source.kind == "dns":
            dial.server_name = watched.source.where

    def _give_up(self, endpoint: Endpoint) -> None:
        """Stop dialing an address, unless another source has it."""
        if self._use_counts[endpoint] > 0:
            self._use_counts[endpoint] -= 1
            if not self._use_counts[endpoint]:
                del self._use_counts[endpoint]
                self._dialer.stop(endpoint)

    def _linked(self, watched: KnownSource, dialed: Future[Dial]) -> None:
        """Complete the wait for the first link."""
        if dialed.exception() is None and (peer := dialed.result().peer) is not None:
            watched.first.set_result(peer)

    def _failed(self, watched: KnownSource, endpoint: Endpoint, text: str) -> None:
        """Record that no node answers at an address, or that the address is this node's own."""
        dial = self._dialer.find(endpoint)
        if dial is not None and dial.leads_home:
            watched.own.add(endpoint)
            addresses = tuple(address for address in watched.addresses if address != endpoint)
            self._runner.post(self._update_dials, watched, addresses)
        else:
            watched.refusal = text

    def error_of(self, watched: KnownSource, seconds: float) -> NodeUnreachable:
        """Return the error for a source that led to no node within some seconds."""
        text = f"{watched.source.text} led to no node within {seconds:g} s: "
        if watched.error:
            text += watched.error
        elif watched.addresses:
            text += watched.refusal or "none of its addresses answered"
        elif watched.reads:
            text += "it names only this node"
        else:
            text += "the look-up took too long"
        return NodeUnreachable(text)


def _outcome(find: Callable[[], list[Endpoint]]) -> tuple[list[Endpoint], str]:
    """Return the addresses that a look-up finds, and the text of its error or ""."""
    try:
        return find(), ""
    except (OSError, CallboardError, ValueError) as error:
        return [], f"{getattr(error, 'strerror', None) or error}"


def _endpoint(result: Any, port: int) -> Endpoint:
    """Return an address of a look-up; a simulated one is a host and a port."""
    address = result[4] if len(result) > 2 else result
    return address[0], port


def read_addresses(path: Path) -> list[Endpoint]:
    """Read addresses of nodes, one per line; `#` starts a comment.

    Raises:
        OSError: the file cannot be read.
        InvalidAddress: a line is malformed.
    """
    with path.open("rb") as file:
        text = file.read(MOST[1] + 1)
    if len(text) > MOST[1]:
        msg = f"{path} has more than {MOST[1]:,} bytes"
        raise InvalidAddress(msg)
    addresses = []
    for number, line in enumerate(text.decode(errors="replace").splitlines(), 1):
        words = line.partition("#")[0].strip()
        if words:
            try:
                addresses.append(parse_node_address(words))
            except InvalidAddress as error:
                msg = f"{path}:{number}: {error}"
                raise InvalidAddress(msg) from None
    return addresses


def find_services(name: str) -> list[Endpoint]:
    """Resolve the SRV records of a name (RFC 2782): targets and ports in order of use.

    Raises:
        InvalidAddress: dnspython is missing, or the name server has no such records.
        OSError: no name server answers.
    """
    try:
        from dns import exception, resolver
    except ImportError:
        msg = "srv:// needs dnspython; pip install 'callboard[dns]'"
        raise InvalidAddress(msg) from None
    try:
        records: Any = resolver.resolve(name, "SRV", search=True)
    except exception.DNSException as error:
        raise InvalidAddress(str(error) or type(error).__name__) from None
    chosen = sorted(records, key=lambda record: (record.priority, -record.weight))
    return [(str(record.target).rstrip("."), record.port) for record in chosen]


def is_of_this_machine(host: str) -> bool:
    """Return whether an address is one of this machine, so that a socket can bind to it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.bind((host, 0))
        return True
    return False
