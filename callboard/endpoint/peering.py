"""Peering: what users ask for about peers, and who waits for something to be true of them.

It belongs to a core actor and runs in its turns. Dials are the node's: this only says which
are wanted, tells status subscribers what became of them, and keeps those who wait.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from actors.future import Future
from callboard.endpoint.core import Core
from callboard.endpoint.core_effect import Effect

if TYPE_CHECKING:
    from actors.cell import Cell
    from proxies.dial import Dial
    from proxies.overlay import Overlay

__all__ = ["AddPeer", "DialEnded", "DialFailed", "Peering", "RemovePeer", "Until"]

INTRODUCTION_LIMIT: Final = 10.0
"""Seconds that the endpoint behind an established link may take to tell its filter."""

Address = tuple[str, int]


@dataclass(frozen=True, slots=True)
class AddPeer:
    """Peer with who listens at an address.

    Attributes:
        address: host and port.
        retry: seconds between attempts at most; 0 tries once.
        done: gets whether the endpoints are peers, each with the filter of the other.
    """

    address: Address
    retry: float
    done: Future[bool]


@dataclass(frozen=True, slots=True)
class DialEnded:
    """There is a link to the node `peer`, or (None) nobody dials any more."""

    order: AddPeer
    peer: bytes | None


@dataclass(frozen=True, slots=True)
class DialFailed:
    """An attempt failed."""

    address: Address
    reason: str


@dataclass(frozen=True, slots=True)
class RemovePeer:
    """Dial an address no more, end its link; `done` when status subscribers were told."""

    address: Address
    done: Future[bool]


@dataclass(frozen=True, slots=True)
class Until:
    """Wait until something is true of the core; `done` gets False after `timeout` seconds."""

    condition: Callable[[Core], bool]
    done: Future[bool]
    timeout: float


@dataclass(frozen=True, slots=True)
class _Complete:
    done: Future[bool]


PeeringOrder = AddPeer | DialEnded | DialFailed | RemovePeer | Until | _Complete


class Peering:
    """The wishes about peers of one core actor."""

    def __init__(self, cell: "Cell", core: Core, network: "Overlay") -> None:
        self._cell = cell
        self._core = core
        self._network = network
        #: Neighbours whose link the user ended: their loss is no surprise.
        self.removed: set[bytes] = set()
        self._waiting: list[Until] = []

    def carry_out(self, order: PeeringOrder) -> list[Effect]:
        """Do what was asked for; returns what status subscribers are told."""
        match order:
            case AddPeer():
                self._add(order)
            case DialEnded():
                self._dial_ended(order)
            case DialFailed():
                return self._core.peer_unavailable(order.address, order.reason)
            case RemovePeer():
                return self._remove(order)
            case Until():
                self._wait(order)
            case _Complete():
                order.done.set_result(True)
        return []

    @property
    def is_awaited(self) -> bool:
        """Whether somebody waits for something."""
        return bool(self._waiting)

    def look(self) -> None:
        """Something changed: tell those whose condition is true."""
        waiting, self._waiting = self._waiting, []
        for order in waiting:
            if order.condition(self._core):
                order.done.set_result(True)
            elif not order.done.done():
                self._waiting.append(order)

    def close(self) -> None:
        """Tell everybody who waits that it will not come."""
        for order in self._waiting:
            order.done.set_result(False)
        self._waiting.clear()

    def _add(self, order: AddPeer) -> None:
        def failed(reason: str) -> None:
            self._cell.post(DialFailed(order.address, reason), None)

        def ended(dial: "Future[Dial]") -> None:
            peer = None if dial.exception() is not None else dial.result().peer
            self._cell.post(DialEnded(order, peer), None)

        waiter: Future[Any] = self._network.dial(
            order.address, retry=order.retry, on_failure=failed
        )
        waiter.add_done_callback(ended)

    def _dial_ended(self, order: DialEnded) -> None:
        peer = order.peer
        if peer is None:
            order.order.done.set_result(False)
            return

        def is_introduced(core: Core) -> bool:
            return core.is_introduced(peer)

        self._wait(Until(is_introduced, order.order.done, INTRODUCTION_LIMIT))

    def _remove(self, order: RemovePeer) -> list[Effect]:
        try:
            peer = self._network.unlink(order.address)
        except LookupError:
            effects = self._core.cannot_remove_peer(order.address)
        else:
            effects = []
            if peer is not None:
                self.removed.add(peer)
        # The end of the link is in the mailbox already, if there is one: this comes behind it.
        self._cell.post(_Complete(order.done), None)
        return effects

    def _wait(self, order: Until) -> None:
        if order.condition(self._core):
            order.done.set_result(True)
        elif order.timeout <= 0.0:
            order.done.set_result(False)
        else:
            self._waiting.append(order)
            self._cell.runner.call_later(order.timeout, order.done.set_result, False)  # noqa: FBT003
