"""Discovery: addresses of nodes from names in DNS and from files, looked up again and again.

A source is looked at when it is added, then every so many seconds; a file each second. New
addresses are dialed, and kept as those of `join` are. Addresses that are gone are dialed no
more, and a link that stands stays until it ends by itself. While a look-up fails, what the last
one said holds: a name server that is away must not take a cluster apart. The node's own address
is left out, as a name that many nodes share has it too.
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
from callboard.proxies.address import Endpoint, NodeSource, endpoint_text, parse_node_address
from callboard.proxies.events import AddressesChanged, LookUpFailed
from callboard.proxies.link.dialer import LAST_RETRY, Dial, Dialer
from callboard.proxies.link.network import Network
from callboard.support.dataclass import dataclass

_log = logging.getLogger("callboard.links")

#: Seconds between look-ups of a name.
INTERVAL: Final = 10.0

#: Seconds between looks at a file.
FILE_INTERVAL: Final = 1.0

#: Addresses that one source may have, and bytes of a file.
MOST: Final = (1_024, 1 << 20)


@dataclass(eq=False)
class KnownSource:
    """A source, and what it said last."""

    source: NodeSource
    #: Done with the id of the first node that was linked; a dummy where nobody waits.
    first: Future[bytes]
    known: tuple[Endpoint, ...] = ()
    #: Why the last look-up, and the last dial, failed; empty where they did not.
    error: str = ""
    refusal: str = ""
    #: How many look-ups succeeded.
    looks: int = 0
    timer: Timer | None = None
    is_closed: bool = False
    #: Addresses at which this node itself answered.
    own: set[Endpoint] = field(default_factory=set)


@dataclass(eq=False, repr=False)
class Discovery:
    """The sources of one node. Its methods run on the runner with its role."""

    _runner: Runner
    _network: Network
    _dialer: Dialer
    #: Whether an address is one where this node listens.
    _is_own: Callable[[Endpoint], bool]
    _report: Callable[[object], object]
    _sources: list[KnownSource] = field(default_factory=list)
    #: How many sources have an address that is dialed because of them.
    _wanted: Counter[Endpoint] = field(default_factory=Counter)

    def add(self, source: NodeSource, first: Future[bytes]) -> KnownSource:
        """Follow a source from now on."""
        watched = KnownSource(source, first)
        self._sources.append(watched)
        self._look(watched)
        return watched

    def remove(self, watched: KnownSource) -> None:
        """Follow a source no more, and dial its addresses no more."""
        watched.is_closed = True
        if watched.timer is not None:
            watched.timer.cancel()
        if watched in self._sources:
            self._sources.remove(watched)
        self._take(watched, ())

    def close(self) -> None:
        """Look no more; the dials end with the dialer."""
        for watched in self._sources:
            watched.is_closed = True
            if watched.timer is not None:
                watched.timer.cancel()
        self._sources.clear()

    @property
    def is_alone(self) -> bool:
        """Whether there are sources, all were looked up, and none names another node."""
        return bool(self._sources) and all(
            watched.looks and not watched.error and not watched.known
            for watched in self._sources
        )

    # --- looking ---

    def _look(self, watched: KnownSource) -> None:
        """Look a source up: a file at once, a name on a thread, as that blocks."""
        source = watched.source
        if watched.is_closed:
            return
        if source.kind == "file":
            self._found(watched, *_outcome(lambda: read_addresses(Path(source.where))))
            return
        if source.kind == "dns":
            found = self._network.resolve(source.where, source.port, numeric=True)
            if found is not None:
                self._found(watched, [_endpoint(each, source.port) for each in found], "")
                return

        def find() -> list[Endpoint]:
            if source.kind == "srv":
                return find_services(source.where)
            found = self._network.resolve(source.where, source.port, numeric=False) or ()
            return [_endpoint(each, source.port) for each in found]

        threading.Thread(
            target=lambda: self._runner.post(self._found, watched, *_outcome(find)),
            name="callboard-discovery",
            daemon=True,
        ).start()

    def _found(self, watched: KnownSource, found: list[Endpoint], error: str) -> None:
        """Take what a look-up said, and plan the next one."""
        if watched.is_closed:
            return
        text = watched.source.text
        if error and error != watched.error:
            warning = "%s: %s; it is looked up again, and what it said last holds"
            _log.warning(warning, text, error)
            self._report(LookUpFailed(text, error))
        watched.error = error
        if not error:
            watched.looks += 1
            most = MOST[0]
            if len(found) > most:
                _log.warning("%s has %d addresses; %d are taken", text, len(found), most)
            watched.own &= set(found)
            self._take(watched, tuple(dict.fromkeys(found[:most])))
        seconds = FILE_INTERVAL if watched.source.kind == "file" else INTERVAL
        watched.timer = self._runner.call_later(seconds, self._look, watched)

    def _take(self, watched: KnownSource, found: tuple[Endpoint, ...]) -> None:
        """Dial what is new, and give up what is gone."""
        others = [each for each in found if not (each in watched.own or self._is_own(each))]
        added = [each for each in others if each not in watched.known]
        removed = [each for each in watched.known if each not in others]
        watched.known = tuple(others)
        for endpoint in added:
            self._dial(watched, endpoint)
        for endpoint in removed:
            self._give_up(endpoint)
        if added or removed:
            texts = [tuple(map(endpoint_text, each)) for each in (added, removed)]
            _log.info("%s: new %s, gone %s", watched.source.text, *texts)
            self._report(AddressesChanged(watched.source.text, *texts))

    # --- dialing ---

    def _dial(self, watched: KnownSource, endpoint: Endpoint) -> None:
        """Dial an address until it is gone, unless a user dials it already."""
        dial = self._dialer.find(endpoint)
        is_ours = self._wanted[endpoint] > 0
        if is_ours or dial is None or not dial.keep:
            self._wanted[endpoint] += 1
        waiter: Future[Dial] = Future()
        waiter.add_done_callback(partial(self._linked, watched))
        failed = partial(self._failed, watched, endpoint)
        self._dialer.dial(endpoint, waiter, retry=LAST_RETRY, on_failure=failed)
        dial = self._dialer.find(endpoint)
        if dial is not None and watched.source.kind == "dns":
            dial.server_name = watched.source.where

    def _give_up(self, endpoint: Endpoint) -> None:
        """Dial an address no more, if no other source has it."""
        if self._wanted[endpoint] > 0:
            self._wanted[endpoint] -= 1
            if not self._wanted[endpoint]:
                del self._wanted[endpoint]
                self._dialer.stop(endpoint)

    def _linked(self, watched: KnownSource, dialed: Future[Dial]) -> None:
        """Take note of the first link."""
        if dialed.exception() is None and (peer := dialed.result().peer) is not None:
            watched.first.set_result(peer)

    def _failed(self, watched: KnownSource, endpoint: Endpoint, text: str) -> None:
        """Take note that nobody answers, or this node itself."""
        dial = self._dialer.find(endpoint)
        if dial is not None and dial.leads_home:
            watched.own.add(endpoint)
            known = tuple(each for each in watched.known if each != endpoint)
            self._runner.post(self._take, watched, known)
        else:
            watched.refusal = text

    def why(self, watched: KnownSource, seconds: float) -> NodeUnreachable:
        """Return why a source has led to no node within some seconds."""
        text = f"{watched.source.text} led to no node within {seconds:g} s: "
        if watched.error:
            text += watched.error
        elif watched.known:
            text += watched.refusal or "none of its addresses answered"
        elif watched.looks:
            text += "it names no node but this one"
        else:
            text += "the look-up took too long"
        return NodeUnreachable(text)


def _outcome(find: Callable[[], list[Endpoint]]) -> tuple[list[Endpoint], str]:
    """Return what a look-up finds, and why it fails."""
    try:
        return find(), ""
    except (OSError, CallboardError, ValueError) as error:
        return [], f"{getattr(error, 'strerror', None) or error}"


def _endpoint(found: Any, port: int) -> Endpoint:
    """Return an address of a look-up; a simulated one is a host and a port."""
    address = found[4] if len(found) > 2 else found
    return address[0], port


def read_addresses(path: Path) -> list[Endpoint]:
    """Read addresses of nodes, one in each line; what is behind a `#` is for people.

    Raises:
        OSError: the file cannot be read.
        InvalidAddress: a line has another form.
    """
    with path.open("rb") as file:
        text = file.read(MOST[1] + 1)
    if len(text) > MOST[1]:
        msg = f"{path} has more than {MOST[1]:,} bytes"
        raise InvalidAddress(msg)
    found = []
    for number, line in enumerate(text.decode(errors="replace").splitlines(), 1):
        words = line.partition("#")[0].strip()
        if words:
            try:
                found.append(parse_node_address(words))
            except InvalidAddress as error:
                msg = f"{path}:{number}: {error}"
                raise InvalidAddress(msg) from None
    return found


def find_services(name: str) -> list[Endpoint]:
    """Look the SRV records of a name up (RFC 2782): targets and ports, the first to try first.

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
    chosen = sorted(records, key=lambda each: (each.priority, -each.weight))
    return [(str(each.target).rstrip("."), each.port) for each in chosen]


def is_of_this_machine(host: str) -> bool:
    """Return whether an address is one of this machine: a socket can be bound to it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.bind((host, 0))
        return True
    return False
