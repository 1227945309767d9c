"""Dialing: requests to be linked to an address, and their attempts.

Only the side that dialed dials again: after 0.1 s, then with doubled pauses up to 2 s (or the
limit of the dial). Each pause is extended by a random time, so that nodes that lost the same
peer do not dial it at the same moment. With TLS, the TLS handshake takes place after the
connection is made and before the link starts.
"""

import logging
import socket
from collections.abc import Callable
from dataclasses import field
from functools import partial
from typing import Final

from callboard.actors.errors import NodeClosed, NodeUnreachable
from callboard.actors.future import Future
from callboard.actors.runner.runner import Runner
from callboard.actors.runner.timers import Timer
from callboard.backoff import Backoff
from callboard.basp.errors import AuthenticationFailed, ConnectedToItself, LinkLost
from callboard.basp.handshake import PeerIdentity, Published
from callboard.basp.link import Closed, LinkPairs
from callboard.basp.node_id import NodeId
from callboard.proxies.address import Endpoint, endpoint_text
from callboard.proxies.errors import LinkError, TlsError
from callboard.proxies.link.attempt import Attempt, Obstacle
from callboard.proxies.link.network import Network
from callboard.proxies.link.secret_tls import DialingEncryption, Encryption, SecretTls
from callboard.proxies.link.tls_socket import TlsSocket
from callboard.proxies.link.wire import Wire
from callboard.support.dataclass import dataclass
from callboard.tls.certificates import Certificates

LAST_RETRY: Final = 2.0


class Dial:
    """A request to be linked to the node that listens at an address."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        #: Whether this node dials again when the link is lost.
        self.keep = False
        self.backoff = Backoff(FIRST_RETRY, LAST_RETRY)
        self.peer: NodeId | None = None
        self.published: Published | None = None
        self.wire: Wire | None = None
        self.timer: Timer | None = None
        #: The current attempt to connect.
        self.attempt: Attempt | None = None
        self.waiters: list[Future[Dial]] = []
        #: Futures that do not fail with an attempt: only success or `stop` completes them.
        self.lasting_waiters: list[Future[Dial]] = []
        #: Called with the reason of each failed attempt.
        self.on_failure: Callable[[str], object] | None = None
        self.is_busy = False
        self.is_stopped = False
        #: Secrets that the peer has refused since the last success.
        self.refused_keys = 0
        #: The last logged reason of having no link.
        self.logged_text = ""
        #: The name that a certificate of the peer must show, if the host is one of its
        #: addresses.
        self.server_name: str | None = None
        #: Whether the address turned out to be this node's own.
        self.leads_home = False
        #: Whether the port speaks TLS, if this has to be detected; None until it is known.
        self.speaks_tls: bool | None = None

    def plan(self, timer: Timer | None) -> None:
        """Replace the timer of the dial, or drop it."""
        if self.timer is not None:
            self.timer.cancel()
        self.timer = timer

    def succeed(self) -> None:
        """Complete all waiting futures, because the peer is linked."""
        self.backoff.reset()
        waiters, self.waiters, self.lasting_waiters = (
            [*self.waiters, *self.lasting_waiters],
            [],
            [],
        )
        for waiter in waiters:
            waiter.set_result(self)

    def fail(self, text: str, cause: Exception | None = None) -> None:
        """Fail the futures that wait for this attempt.

        If `keep` is set, the dial itself continues.

        Args:
            text: the reason.
            cause: an error that a person must fix before a link is possible, so the futures in
                `patient` fail too; None if no node answered.
        """
        waiters, self.waiters = self.waiters, []
        if cause is not None:
            waiters, self.lasting_waiters = [*waiters, *self.lasting_waiters], []
        for waiter in waiters:
            error = NodeUnreachable(text) if cause is None else LinkError(text)
            error.__cause__ = cause
            waiter.set_exception(error)

    def stop(self, text: str) -> None:
        """Stop the dial for good, and fail all futures that wait for it."""
        self.is_stopped = True
        self.keep = False
        self.waiters += self.lasting_waiters
        self.lasting_waiters = []
        self.fail(text)


_log = logging.getLogger("callboard.links")

FIRST_RETRY: Final = 0.1

#: Addresses for which the accepted secret is remembered.
KEY_LIMIT: Final = 4_096

#: Seconds without a byte after which a port may speak TLS, because nodes greet at once.
SILENCE: Final = 0.5


@dataclass(eq=False, repr=False)
class Dialer:
    """The dials of one node. Its methods run on the thread with the runner's role."""

    _runner: Runner
    _network: Network
    #: For outgoing connections; None for plain ones.
    _tls: Encryption | None
    #: Starts a link on a connection.
    _opened: Callable[[Dial, socket.socket | TlsSocket], Wire]
    #: Closes a connection after its last bytes are sent.
    _part_with: Callable[[object, TlsSocket], None]
    #: The node's links, by peer.
    _pairs: LinkPairs
    #: Number of secrets that the node may prove.
    _key_count: int
    _dials: dict[Endpoint, Dial] = field(default_factory=dict)
    #: The last accepted secrets by address, except first ones.
    _keys: dict[Endpoint, int] = field(default_factory=dict)
    #: Without configured TLS: tried with ports that send nothing, as TLS ports do. None to use
    #: plain connections only.
    either: Certificates | None = None
    _closed: bool = False

    def __len__(self) -> int:
        """Return the number of dialed connections whose TLS handshake is in progress."""
        attempts = [dial.attempt for dial in self._dials.values()]
        return sum(
            attempt is not None and attempt.handshake is not None for attempt in attempts
        )

    def dial(
        self,
        endpoint: Endpoint,
        waiter: Future[Dial],
        *,
        keep: bool = False,
        retry: float = 0.0,
        on_failure: Callable[[str], object] | None = None,
    ) -> None:
        """Link with the node that listens at an address.

        Args:
            endpoint: host and port.
            waiter: done when the link is established, or the attempt has failed.
            keep: dial again whenever the link is lost.
            retry: longest pause between two attempts, in seconds. If it is not 0, `waiter` is
                done only after success or `stop`, and this node dials again when the link is
                lost.
            on_failure: called with the reason of each failed attempt.
        """
        if self._closed:
            waiter.set_exception(NodeClosed("the node is closed"))
            return
        dial = self._dials.setdefault(endpoint, Dial(endpoint))
        dial.keep = dial.keep or keep or retry > 0.0
        dial.on_failure = on_failure or dial.on_failure
        if retry > 0.0:
            dial.backoff.longest = retry
            dial.lasting_waiters.append(waiter)
        else:
            dial.waiters.append(waiter)
        if self._is_linked(dial):
            dial.succeed()
        elif not dial.is_busy:
            self._start(dial)

    def key_of(self, dial: Dial) -> int:
        """Return the index of the secret to prove at an address."""
        return self._keys.get(dial.endpoint, 0)

    def change_keys(self, count: int) -> None:
        """Use a new list of secrets, starting with the first one at each address."""
        self._key_count = count
        self._keys.clear()
        for dial in self._dials.values():
            dial.refused_keys = 0

    def tries_another_key(self, wire: Wire, closed: Closed) -> bool:
        """Return whether the dial of a connection continues with another secret."""
        return isinstance(closed.error, AuthenticationFailed) and any(
            dial.wire is wire and self._has_another_key(dial) for dial in self._dials.values()
        )

    def _has_another_key(self, dial: Dial) -> bool:
        """Return whether a secret is left that the peer of a dial may accept."""
        return dial.refused_keys + 1 < self._key_count and not self._closed

    def _try_next_key(self, dial: Dial) -> None:
        """Dial again at once, with the next secret of the node."""
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

    def forget_waiter(self, endpoint: Endpoint, waiter: Future) -> None:
        """Remove a waiter that timed out."""
        dial = self._dials.get(endpoint)
        if dial is not None and waiter in dial.waiters:
            dial.waiters.remove(waiter)

    def stop(self, endpoint: Endpoint) -> Dial | None:
        """Stop a dial for good and return it; the caller ends its link."""
        dial = self._dials.pop(endpoint, None)
        if dial is None:
            return None
        self._let_go(dial)
        dial.stop(f"the dial of {endpoint_text(endpoint)} was stopped")
        return dial

    def stop_all(self, peer: NodeId) -> None:
        """Stop every dial that leads to a node, by any address."""
        for endpoint, dial in list(self._dials.items()):
            if dial.peer == peer:
                self.stop(endpoint)

    def find(self, endpoint: Endpoint) -> Dial | None:
        """Return the dial of an address, if there is one."""
        return self._dials.get(endpoint)

    def kept_dials(self) -> list[Dial]:
        """Return the dials that continue when their link is lost."""
        return [dial for dial in list(self._dials.values()) if dial.keep]

    def _let_go(self, dial: Dial) -> None:
        """Cancel the timer and the current attempt of a dial."""
        dial.plan(None)
        if dial.attempt is not None:
            dial.attempt.abandon()
            dial.attempt = None

    def _start(self, dial: Dial) -> None:
        """Start an attempt."""
        if self._closed or dial.is_busy:
            return  # an attempt is already in progress
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
        """Return the encryption of a dial's connection."""
        if isinstance(self._tls, SecretTls):
            return self._tls.for_key(self.key_of(dial))
        return self._tls or (self.either if dial.speaks_tls else None)

    def _connected(self, dial: Dial, sock: "socket.socket | TlsSocket") -> None:
        """Start a link on a new connection."""
        dial.attempt = None
        wire = dial.wire = self._opened(dial, sock)
        if isinstance(sock, TlsSocket):
            tls = self._tls or self.either
            assert tls is not None, "nothing else secures a connection"
            sock.follow(tls, wire)
        elif self.either is not None and dial.speaks_tls is None:
            dial.plan(self._runner.call_later(SILENCE, self._try_tls, dial, wire))

    def _hindered(self, dial: Dial, obstacle: Obstacle) -> None:
        """End an attempt that failed before a link was started."""
        dial.attempt = None
        remote, secured = endpoint_text(dial.endpoint), obstacle.secured
        # The port does not speak TLS, and was only slow.
        if secured is not None and self._tls is None:
            secured.close()
            dial.is_busy, dial.speaks_tls = False, False
            self._start(dial)
        elif obstacle.stage == "host":
            self._failed(dial, obstacle.reason)
        elif obstacle.stage == "connect":
            text = f"no node answers at {remote} ({obstacle.reason}); see that it is running"
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
            text = f"no link with {remote}: {obstacle.reason}"
            self._failed(dial, text, TlsError(obstacle.reason) if is_unfit else None)

    def _try_tls(self, dial: Dial, wire: Wire) -> None:
        """Dial a port that has sent nothing again with TLS.

        A port with TLS sends nothing before the client has sent its first bytes.
        """
        if dial.wire is wire and not wire.bytes_received:
            dial.wire, dial.is_busy, dial.speaks_tls = None, False, True
            wire.end("the port sends nothing, like ports with TLS")
            self._start(dial)

    def _failed(
        self, dial: Dial, text: str, cause: Exception | None = None, *, was_linked: bool = False
    ) -> None:
        """End an attempt; if `keep` is set, schedule the next one."""
        if dial.is_stopped:
            return
        dial.is_busy = False
        dial.wire = None
        dial.fail("the node was closed" if self._closed else text, cause)
        if dial.on_failure is not None and not was_linked:
            dial.on_failure(text)
        if dial.keep and not self._closed:
            if text != dial.logged_text:  # every future may have failed before
                dial.logged_text = text
                if cause is None:  # the peer may be started later than this node
                    text += "; the dial continues until it answers"
                is_awaited = cause is not None or bool(dial.lasting_waiters)
                # If all nodes have the same list of seeds, each node finds its own address in
                # it. A warning would be wrong then.
                is_awaited = is_awaited and not dial.leads_home
                _log.log(logging.WARNING if is_awaited else logging.INFO, "%s", text)
            self._retry(dial)
        else:
            self._dials.pop(dial.endpoint, None)

    def _retry(self, dial: Dial) -> None:
        """Schedule the next attempt."""
        pause = dial.backoff.next_pause(self._runner.random)
        dial.plan(self._runner.call_later(pause, self._start, dial))

    # --- results of connections ---

    def peer_known(self, wire: Wire, peer: NodeId) -> None:
        """Record the peer of a connection; its dial may use another link with the same peer."""
        for dial in self._dials.values():
            if dial.wire is wire:
                dial.peer = peer
                if wire.link.peer is not None:
                    dial.published = wire.link.peer.published
                if self._is_linked(dial):
                    dial.succeed()

    def link_established(self, wire: Wire, peer: PeerIdentity) -> None:
        """Complete all dials that lead to a node that is linked now, whichever side dialed."""
        for dial in list(self._dials.values()):
            if dial.wire is wire:
                dial.peer = peer.node_id
                dial.published = peer.published
                dial.refused_keys = 0
            if dial.peer == peer.node_id:
                dial.succeed()

    def wire_ended(self, wire: Wire, closed: Closed, *, was_established: bool) -> None:
        """Handle the end of a connection: its dial fails, dials again, or uses another link."""
        peer = None if wire.link.peer is None else wire.link.peer.node_id
        for dial in list(self._dials.values()):
            if dial.wire is wire:
                self._wire_of_dial_ended(dial, closed, was_linked=was_established)
            elif peer is None or dial.peer != peer or dial.is_busy:
                continue
            # The dial waited for the handshake of this connection.
            elif dial.waiters or not was_established:
                self._wire_of_dial_ended(dial, closed, was_linked=was_established)
            elif dial.keep:
                self._retry(dial)

    def _wire_of_dial_ended(self, dial: Dial, closed: Closed, *, was_linked: bool) -> None:
        """Fail a dial whose connection ended, unless another link with its peer replaces it."""
        wire, dial.wire = dial.wire, None
        dial.is_busy = False
        if self._is_linked(dial):
            dial.succeed()
            return
        if dial.peer is not None and self._pairs.holder(dial.peer) is not None:
            return  # another connection with the same peer is in its handshake
        is_refused = not was_linked and isinstance(closed.error, AuthenticationFailed)
        if is_refused and self._has_another_key(dial):
            self._try_next_key(dial)
            return
        dial.refused_keys = 0
        dial.leads_home = isinstance(closed.error, ConnectedToItself)
        text = f"no link with {endpoint_text(dial.endpoint)}: {closed.reason}"
        if self._tls is None and wire is not None and not wire.bytes_received:
            text += (
                "; it sent nothing before: it may want TLS (tls=… or encrypt=True) or be full"
            )
        cause = None if isinstance(closed.error, LinkLost) else closed.error
        self._failed(dial, text, cause, was_linked=was_linked)

    def close(self) -> None:
        """End all dials, and fail the futures that wait for them."""
        self._closed = True
        for dial in list(self._dials.values()):
            self._let_go(dial)
            dial.stop("the node was closed")
        self._dials.clear()
