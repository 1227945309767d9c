"""Peering: what users ask for about peers, and the conditions that are waited for.

It is used in the turns of a hub. Dials are the node's: this only says which are wanted, tells
status subscribers what became of them, and keeps the conditions.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from callboard.actors.future import Future
from callboard.endpoint.machine.core import Core
from callboard.endpoint.machine.effect import CoreEffect
from callboard.proxies.link.dialer import Dial
from callboard.proxies.overlay import Overlay

#: Seconds that the endpoint behind an established link may take to tell its filter.
INTRODUCTION_LIMIT: Final = 10.0

PeerAddress = tuple[str, int]
Condition = Callable[[Core], bool]


@dataclass(frozen=True, slots=True)
class Awaited:
    """A condition, and the future that is True when it is."""

    condition: Condition
    done: Future[bool]


class Peering:
    """The wishes about peers of one hub."""

    def __init__(
        self,
        core: Core,
        network: Overlay,
        call: Callable[..., None],
        call_later: Callable[..., object],
        carry_out: Callable[[list[CoreEffect]], None],
    ) -> None:
        """Begin without wishes.

        Args:
            core: of the hub.
            network: the links of its node.
            call: calls a function with arguments in a turn of the hub, from any thread.
            call_later: calls a function on the thread of the node in some seconds.
            carry_out: tells status subscribers.
        """
        self._core = core
        self._network = network
        self._call = call
        self._call_later = call_later
        self._carry_out = carry_out
        #: Neighbors whose link the user ended: their loss is not a surprise.
        self.removed: set[bytes] = set()
        self._waiting: list[Awaited] = []

    @property
    def is_awaited(self) -> bool:
        """Whether somebody waits for something."""
        return bool(self._waiting)

    def look(self) -> None:
        """Look at all conditions again: something changed."""
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            if one.condition(self._core):
                one.done.set_result(True)
            elif not one.done.done():
                self._waiting.append(one)

    def wait(self, condition: Condition, done: Future[bool], timeout: float) -> None:
        """Wait until something is true of the core; `done` gets False after `timeout`."""
        if condition(self._core):
            done.set_result(True)
        elif timeout <= 0.0:
            done.set_result(False)
        else:
            self._waiting.append(Awaited(condition, done))
            self._call_later(timeout, done.set_result, False)  # noqa: FBT003

    def add(self, address: PeerAddress, retry: float, done: Future[bool]) -> None:
        """Peer with the node that listens at an address.

        Args:
            address: host and port.
            retry: seconds between attempts at most; 0 tries once.
            done: gets whether the endpoints are peers, each with the filter of the other.
        """
        failed = partial(self._call, self._dial_failed, address)

        def ended(dial: "Future[Dial]") -> None:
            peer = None if dial.exception() is not None else dial.result().peer
            self._call(self._dial_ended, peer, done)

        self._network.dial(address, retry=retry, on_failure=failed).add_done_callback(ended)

    def remove(self, address: PeerAddress, done: Future[bool]) -> None:
        """Dial an address no more, end its link; `done` when status subscribers were told."""
        try:
            peer = self._network.unlink(address)
        except LookupError:
            self._carry_out(self._core.cannot_remove_peer(address))
        else:
            if peer is not None:
                self.removed.add(peer)
        # The end of the link is in the mailbox already, if there is one: this comes behind it.
        self._call(done.set_result, True)  # noqa: FBT003

    def _dial_failed(self, address: PeerAddress, reason: str) -> None:
        """Tell status subscribers that an attempt failed."""
        self._carry_out(self._core.peer_unavailable(address, reason))

    def _dial_ended(self, peer: bytes | None, done: Future[bool]) -> None:
        """There is a link to the node `peer`, or (None) nobody dials any more."""
        if peer is None:
            done.set_result(False)
        else:
            self.wait(lambda core: core.is_introduced(peer), done, INTRODUCTION_LIMIT)
