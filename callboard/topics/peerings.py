"""Peerings that users request and end. The node dials; this module reports the results."""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from callboard.kernel.context import SystemActor
from callboard.kernel.errors import LinkError
from callboard.kernel.reply import Future
from callboard.kernel.topology import Topology
from callboard.topics.core_waits import CoreWaits
from callboard.topics.machine.effect import PeerEvent
from callboard.topics.machine.status import EC

_log: Final = logging.getLogger("callboard.topics")

#: Seconds to wait for the filter of an endpoint after its link is established.
INTRODUCTION_LIMIT: Final = 10.0

Address = tuple[str, int]


class Peerings:
    """The peerings that users of a hub have requested, by address."""

    def __init__(
        self,
        actor: SystemActor,
        waits: CoreWaits,
        report: Callable[[Sequence[PeerEvent]], None],
    ) -> None:
        """Start without peerings.

        Args:
            actor: the hub.
            waits: the waits of the hub.
            report: sends events to status subscribers.
        """
        self._overlay: Topology = actor.node.overlay
        self._call_soon, self._waits, self._report = actor.call_soon, waits, report
        #: Neighbors whose link was ended by a user of this node.
        self._removed: set[bytes] = set()

    def peer(self, address: Address, retry: float) -> Future[bool]:
        """Peer with the node that listens at an address. Can be called from any thread.

        The future gets True when each of the two endpoints has the filter of the other. It gets
        False when the single attempt has failed (`retry` is 0), or when the peering was
        removed.

        Args:
            address: host and port.
            retry: longest pause between attempts in seconds; with 0 there is one attempt, and a
                lost link is not dialed again.
        """
        return self._waits.begin(self._dial, address, retry)

    def unpeer(self, address: Address) -> Future[bool]:
        """Stop dialing an address and end its link. Can be called from any thread.

        The future completes after the end of the link was reported to subscribers of status
        events.
        """
        return self._waits.begin(self._unlink, address)

    def was_removed(self, peer: bytes) -> bool:
        """Return whether a user ended the link to a peer, and forget it."""
        is_removed = peer in self._removed
        self._removed.discard(peer)
        return is_removed

    def _dial(self, address: Address, retry: float, done: Future[bool]) -> None:
        """Dial an address."""
        failed = partial(self._call_soon, self._dial_failed, address)
        dial = self._overlay.dial(address, retry=retry, on_failure=failed)

        def ended(_: object) -> None:
            error = dial.exception()
            if isinstance(error, LinkError) and not retry:
                _log.warning("%s", error)  # a dial with retries logs its failures itself
            peer = None if error is not None else dial.result().peer
            self._call_soon(self._dial_ended, peer, done)

        dial.add_done_callback(ended)

    def _dial_failed(self, address: Address, reason: str) -> None:
        """Report a failed attempt."""
        self._report([PeerEvent(EC.PeerUnavailable, None, address, reason)])

    def _dial_ended(self, peer: bytes | None, done: Future[bool]) -> None:
        """Handle the end of a dial: a link to `peer`, or None if no attempt succeeded."""
        if peer is None:
            done.set_result(False)
        else:
            self._waits.add(lambda core: core.is_introduced(peer), INTRODUCTION_LIMIT, done)

    def _unlink(self, address: Address, done: Future[bool]) -> None:
        """Stop dialing an address, and end its link."""
        try:
            peer = self._overlay.unlink(address)
        except LookupError:
            text = f"no peer at {address[0]}:{address[1]}"
            self._report([PeerEvent(EC.PeerInvalid, None, address, text)])
        else:
            if peer is not None:
                self._removed.add(peer)
        # `unlink` has already posted the end of the link to the hub's mailbox, so the future
        # completes after the events of that end.
        self._call_soon(done.set_result, True)  # noqa: FBT003
