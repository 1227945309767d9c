"""Dialing: the wish to be linked to an address, and how it is followed.

Only the side that dialed dials again: after 0.1 s, then twice as long each time up to 2 s (or
what the dial says), each time a random part more, so that nodes which lost the same peer do
not come back in one moment. With TLS, its handshake comes between connecting and the link.
"""

import logging
import socket
from collections.abc import Callable
from dataclasses import field
from functools import partial
from typing import Any, Final

from callboard.actors.backoff import Backoff
from callboard.actors.errors import NodeClosed, NodeUnreachable
from callboard.actors.future import Future
from callboard.actors.runner.runner import Runner
from callboard.actors.runner.timers import Timer
from callboard.basp.errors import AuthenticationFailed, ConnectedToItself, LinkLost
from callboard.basp.handshake import PeerIdentity, Published
from callboard.basp.link import Closed, LinkPairs
from callboard.basp.node_id import NodeId
from callboard.proxies.address import Endpoint, endpoint_text
from callboard.proxies.errors import LinkError, TlsError
from callboard.proxies.link.attempt import Attempt, Obstacle
from callboard.proxies.link.certificates import Certificates
from callboard.proxies.link.network import Network
from callboard.proxies.link.secret_tls import DialingEncryption, Encryption, SecretTls
from callboard.proxies.link.tls_socket import TlsSocket
from callboard.proxies.link.wire import Wire
from callboard.support.dataclass import dataclass

LAST_RETRY: Final = 2.0


class Dial:
    """The wish to be linked to the node that listens at an address."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        #: Whether the dial goes on when its link is lost.
        self.keep = False
        self.backoff = Backoff(FIRST_RETRY, LAST_RETRY)
        self.peer: NodeId | None = None
        self.published: Published | None = None
        self.wire: Wire | None = None
        self.timer: Timer | None = None
        #: The attempt to connect that is under way.
        self.attempt: Attempt | None = None
        self.waiters: list[Future[Dial]] = []
        #: Those that outlast failed attempts: only success, or `stop`, ends their wait.
        self.patient: list[Future[Dial]] = []
        #: Told of each attempt that failed, with the reason.
        self.on_failure: Callable[[str], object] | None = None
        self.is_busy = False
        self.is_stopped = False
        #: Secrets that the peer has refused since the last success.
        self.refused_keys = 0
        #: Why there is no link, as the log was told last.
        self.told = ""
        #: The name that a certificate there has to show, where the host is an address of it.
        self.server_name: str | None = None
        #: Whether it was this node that answered.
        self.leads_home = False
        #: Whether the port speaks TLS, where that is found out; None before.
        self.speaks_tls: bool | None = None

    def plan(self, timer: Timer | None) -> None:
        """Wait for another timer than before, or for none."""
        if self.timer is not None:
            self.timer.cancel()
        self.timer = timer

    def succeed(self) -> None:
        """Complete all waiters: the peer is linked."""
        self.backoff.reset()
        waiters, self.waiters, self.patient = [*self.waiters, *self.patient], [], []
        for waiter in waiters:
            waiter.set_result(self)

    def fail(self, text: str, cause: Exception | None = None) -> None:
        """Fail the waiters of this attempt (a kept dial goes on all the same).

        Args:
            text: why.
            cause: why people have to change something before there can be a link: then those
                fail too who wait for longer than one attempt. None where nobody answered.
        """
        waiters, self.waiters = self.waiters, []
        if cause is not None:
            waiters, self.patient = [*waiters, *self.patient], []
        for waiter in waiters:
            error = NodeUnreachable(text) if cause is None else LinkError(text)
            error.__cause__ = cause
            waiter.set_exception(error)

    def stop(self, text: str) -> None:
        """Fail all waiters: the dial is given up."""
        self.is_stopped = True
        self.keep = False
        self.waiters += self.patient
        self.patient = []
        self.fail(text)


_log = logging.getLogger("callboard.links")

FIRST_RETRY: Final = 0.1

#: Addresses for which is remembered which secret was the right one.
KEY_LIMIT: Final = 4_096

#: Seconds without a word after which a port may be one that speaks TLS: nodes greet at once.
SILENCE: Final = 0.5


@dataclass(eq=False, repr=False)
class Dialer:
    """The dials of one node. Its methods run on the runner with its role."""

    _runner: Runner
    _network: Network
    #: For connections that the node makes; None for plain ones.
    _tls: Encryption | None
    #: Begins a link on a connection.
    _opened: Callable[[Dial, socket.socket | TlsSocket], Wire]
    #: Closes a connection behind its last words.
    _part_with: Callable[[object, TlsSocket], None]
    #: The node's links, by peer.
    _pairs: LinkPairs
    #: Secrets that the node may prove.
    _key_count: int
    _dials: dict[Endpoint, Dial] = field(default_factory=dict)
    #: The secrets that were proven last, by address, where it was not the first.
    _keys: dict[Endpoint, int] = field(default_factory=dict)
    #: Where no TLS was asked for: tried with ports that say nothing, as those of TLS do. None
    #: to speak plainly in any case.
    either: Certificates | None = None
    _closed: bool = False

    def __len__(self) -> int:
        """Count the TLS handshakes under way: connections that are no links yet."""
        attempts = [dial.attempt for dial in self._dials.values()]
        return sum(each is not None and each.handshake is not None for each in attempts)

    def dial(
        self,
        endpoint: Endpoint,
        waiter: Future[Dial],
        *,
        keep: bool = False,
        retry: float = 0.0,
        on_failure: Callable[[str], object] | None = None,
    ) -> None:
        """Link with who listens there.

        Args:
            endpoint: host and port.
            waiter: done when the link is there, or the attempt has failed.
            keep: dial again whenever the link is lost.
            retry: seconds between two attempts at most; the waiter then waits, however long it
                takes, until `stop`, and the dial is kept.
            on_failure: told of each attempt that failed, with the reason.
        """
        if self._closed:
            waiter.set_exception(NodeClosed("the node is closed"))
            return
        dial = self._dials.setdefault(endpoint, Dial(endpoint))
        dial.keep = dial.keep or keep or retry > 0.0
        dial.on_failure = on_failure or dial.on_failure
        if retry > 0.0:
            dial.backoff.longest = retry
            dial.patient.append(waiter)
        else:
            dial.waiters.append(waiter)
        if self._is_linked(dial):
            dial.succeed()
        elif not dial.is_busy:
            self._start(dial)

    def key_of(self, dial: Dial) -> int:
        """Return which of the node's secrets is to be proven at an address."""
        return self._keys.get(dial.endpoint, 0)

    def change_keys(self, count: int) -> None:
        """Try so many other secrets, at each address the first one first."""
        self._key_count = count
        self._keys.clear()
        for dial in self._dials.values():
            dial.refused_keys = 0

    def tries_another_key(self, wire: Wire, closed: Closed) -> bool:
        """Return whether a connection's dial goes on with another secret."""
        return isinstance(closed.error, AuthenticationFailed) and any(
            dial.wire is wire and self._has_another_key(dial) for dial in self._dials.values()
        )

    def _has_another_key(self, dial: Dial) -> bool:
        """Return whether a secret is left that the peer of a dial may take."""
        return dial.refused_keys + 1 < self._key_count and not self._closed

    def _try_next_key(self, dial: Dial) -> None:
        """Dial again at once, with the next of the node's secrets."""
        dial.refused_keys += 1
        following = (self.key_of(dial) + 1) % self._key_count
        self._keys.pop(dial.endpoint, None)
        self._keys[dial.endpoint] = following
        if len(self._keys) > KEY_LIMIT:
            del self._keys[next(iter(self._keys))]
        self._start(dial)

    def _is_linked(self, dial: Dial) -> bool:
        """Return whether a link with the peer of a dial is established."""
        return dial.peer is not None and self._pairs.is_linked(dial.peer)

    def forget_waiter(self, endpoint: Endpoint, waiter: Future[Any]) -> None:
        """Forget a waiter that gave up."""
        dial = self._dials.get(endpoint)
        if dial is not None and waiter in dial.waiters:
            dial.waiters.remove(waiter)

    def stop(self, endpoint: Endpoint) -> Dial | None:
        """Give a dial up for good; returns it. What link came of it is the caller's to end."""
        dial = self._dials.pop(endpoint, None)
        if dial is None:
            return None
        self._let_go(dial)
        dial.stop(f"nobody dials {endpoint_text(endpoint)} any more")
        return dial

    def stop_all(self, peer: NodeId) -> None:
        """Give up every dial that leads to a node, by whatever address."""
        for endpoint, dial in list(self._dials.items()):
            if dial.peer == peer:
                self.stop(endpoint)

    def find(self, endpoint: Endpoint) -> Dial | None:
        """Return the dial of an address, if there is one."""
        return self._dials.get(endpoint)

    def kept(self) -> list[Dial]:
        """Return the dials that go on when their link is lost."""
        return [dial for dial in list(self._dials.values()) if dial.keep]

    def _let_go(self, dial: Dial) -> None:
        """Drop the timer and the half-made connection of a dial."""
        dial.plan(None)
        if dial.attempt is not None:
            dial.attempt.abandon()
            dial.attempt = None

    def _start(self, dial: Dial) -> None:
        """Begin an attempt."""
        if self._closed or dial.is_busy:
            return  # the timer of an attempt that is under way stays
        dial.plan(None)
        dial.is_busy = True
        dial.attempt = Attempt(
            self._runner,
            self._network,
            dial.endpoint,
            opened=partial(self._connected, dial),
            failed=partial(self._hindered, dial),
            tls=self._tls_of(dial),
            server_name=dial.server_name,
        )
        dial.attempt.begin()

    def _tls_of(self, dial: Dial) -> DialingEncryption | None:
        """Return what encrypts the connection of a dial."""
        if isinstance(self._tls, SecretTls):
            return self._tls.for_key(self.key_of(dial))
        return self._tls or (self.either if dial.speaks_tls else None)

    def _connected(self, dial: Dial, sock: "socket.socket | TlsSocket") -> None:
        """Begin a link on the connection that was made."""
        dial.attempt = None
        wire = dial.wire = self._opened(dial, sock)
        if isinstance(sock, TlsSocket):
            tls = self._tls or self.either
            assert tls is not None, "nothing else secures a connection"
            sock.follow(tls, wire)
        elif self.either is not None and dial.speaks_tls is None:
            dial.plan(self._runner.call_later(SILENCE, self._try_tls, dial, wire))

    def _hindered(self, dial: Dial, obstacle: Obstacle) -> None:
        """End an attempt to which nobody answered, or not with TLS."""
        dial.attempt = None
        where, secured = endpoint_text(dial.endpoint), obstacle.secured
        if secured is not None and self._tls is None:  # it was slow, and speaks plainly
            secured.close()
            dial.is_busy, dial.speaks_tls = False, False
            self._start(dial)
        elif obstacle.stage == "host":
            self._failed(dial, obstacle.why)
        elif obstacle.stage == "connect":
            text = f"no node answers at {where} ({obstacle.why}); see that it is running there"
            self._failed(dial, text)
        else:
            is_unfit = False
            if secured is not None:
                is_unfit = secured.is_unfit
                self._part_with(secured, secured)
            if is_unfit and isinstance(self._tls, SecretTls) and self._has_another_key(dial):
                dial.is_busy = False
                self._try_next_key(dial)
                return
            dial.refused_keys = 0
            text = f"no link with {where}: {obstacle.why}"
            self._failed(dial, text, TlsError(obstacle.why) if is_unfit else None)

    def _try_tls(self, dial: Dial, wire: Wire) -> None:
        """Dial a port again that says nothing: ports of TLS wait for the first word."""
        if dial.wire is wire and not wire.bytes_received:
            dial.wire, dial.is_busy, dial.speaks_tls = None, False, True
            wire.end("it says nothing, as ports that speak TLS")
            self._start(dial)

    def _failed(
        self, dial: Dial, text: str, cause: Exception | None = None, *, was_linked: bool = False
    ) -> None:
        """End an attempt; a kept dial is tried again."""
        if dial.is_stopped:
            return
        dial.is_busy = False
        dial.wire = None
        dial.fail("the node was closed" if self._closed else text, cause)
        if dial.on_failure is not None and not was_linked:
            dial.on_failure(text)
        if dial.keep and not self._closed:
            if text != dial.told:  # nobody may wait for it
                dial.told = text
                if cause is None:  # it may just start later than we do
                    text += "; it is tried again until it answers"
                is_awaited = cause is not None or bool(dial.patient)
                _log.log(logging.WARNING if is_awaited else logging.INFO, "%s", text)
            self._retry(dial)
        else:
            self._dials.pop(dial.endpoint, None)

    def _retry(self, dial: Dial) -> None:
        """Plan the next attempt."""
        pause = dial.backoff.next_pause(self._runner.random)
        dial.plan(self._runner.call_later(pause, self._start, dial))

    # --- what became of connections ---

    def peer_known(self, wire: Wire, peer: NodeId) -> None:
        """Another connection of the pair is there or on its way: a dial may use that one."""
        for dial in self._dials.values():
            if dial.wire is wire:
                dial.peer = peer
                if wire.link.peer is not None:
                    dial.published = wire.link.peer.published
                if self._is_linked(dial):
                    dial.succeed()

    def link_established(self, wire: Wire, peer: PeerIdentity) -> None:
        """Complete the dials of a node that is linked, whichever side dialed."""
        for dial in list(self._dials.values()):
            if dial.wire is wire:
                dial.peer = peer.node_id
                dial.published = peer.published
                dial.refused_keys = 0
            if dial.peer == peer.node_id:
                dial.succeed()

    def wire_ended(self, wire: Wire, closed: Closed, *, was_established: bool) -> None:
        """A connection ended: its dial fails, or goes on, or relies on another one."""
        known = None if wire.link.peer is None else wire.link.peer.node_id
        for dial in list(self._dials.values()):
            if dial.wire is wire:
                self._wire_of_dial_ended(dial, closed, was_linked=was_established)
            elif known is None or dial.peer != known or dial.is_busy:
                continue
            elif dial.waiters or not was_established:  # it relied on this one's handshake
                self._wire_of_dial_ended(dial, closed, was_linked=was_established)
            elif dial.keep:
                self._retry(dial)

    def _wire_of_dial_ended(self, dial: Dial, closed: Closed, *, was_linked: bool) -> None:
        """Let a dial fail, or rely on another connection with its peer."""
        wire, dial.wire = dial.wire, None
        dial.is_busy = False
        if self._is_linked(dial):
            dial.succeed()
            return
        if dial.peer is not None and self._pairs.holder(dial.peer) is not None:
            return  # another connection of the pair is in its handshake
        is_refused = not was_linked and isinstance(closed.error, AuthenticationFailed)
        if is_refused and self._has_another_key(dial):
            self._try_next_key(dial)
            return
        dial.refused_keys = 0
        dial.leads_home = isinstance(closed.error, ConnectedToItself)
        text = f"no link with {endpoint_text(dial.endpoint)}: {closed.reason}"
        if self._tls is None and wire is not None and not wire.bytes_received:
            text += (
                "; it said nothing before: it may want TLS (tls=… or encrypt=True) or be full"
            )
        cause = None if isinstance(closed.error, LinkLost) else closed.error
        self._failed(dial, text, cause, was_linked=was_linked)

    def close(self) -> None:
        """End all dials; their waiters fail."""
        self._closed = True
        for dial in list(self._dials.values()):
            self._let_go(dial)
            dial.stop("the node was closed")
        self._dials.clear()
