"""A dial: the wish to be linked to whoever listens at an address, and who waits for it."""

import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from actors.errors import NodeUnreachable
from actors.future import Future
from basp.errors import BaspError
from proxies.address import Endpoint
from proxies.errors import LinkError

if TYPE_CHECKING:
    from actors.timers import Timer
    from basp.node_id import NodeId
    from proxies.wire import Wire

LAST_RETRY: Final = 2.0


class Dial:
    """The wish to be linked to whoever listens at an address."""

    def __init__(self, endpoint: Endpoint, *, secret: bytes | None, keep: bool) -> None:
        self.endpoint = endpoint
        self.secret = secret
        self.keep = keep
        self.attempts = 0
        self.peer: NodeId | None = None
        self.published: tuple[int, tuple[str, ...]] | None = None
        self.wire: Wire | None = None
        self.timer: Timer | None = None
        #: A connection that is being made.
        self.sock: socket.socket | None = None
        self.waiters: list[Future[Dial]] = []
        #: Those that outlast failed attempts: only success, or `stop`, ends their wait.
        self.patient: list[Future[Dial]] = []
        #: Seconds between two attempts at most, before the random part.
        self.longest_pause = LAST_RETRY
        #: Told of each attempt that failed, with the reason.
        self.on_failure: Callable[[str], object] | None = None
        self.is_busy = False
        self.is_stopped = False
        #: Why there is no link, as the log was told last.
        self.told = ""

    def succeed(self) -> None:
        """Tell who waits: the peer is linked."""
        self.attempts = 0
        waiters, self.waiters, self.patient = [*self.waiters, *self.patient], [], []
        for waiter in waiters:
            waiter.set_result(self)

    def fail(self, text: str, cause: BaspError | None = None) -> None:
        """Tell who waits: it did not work (a kept dial goes on all the same).

        Args:
            text: why.
            cause: what the protocol found wrong; None where nobody answered.
        """
        waiters, self.waiters = self.waiters, []
        for waiter in waiters:
            error = NodeUnreachable(text) if cause is None else LinkError(text)
            error.__cause__ = cause
            waiter.set_exception(error)

    def stop(self, text: str) -> None:
        """Tell everybody who waits that nobody dials any more."""
        self.is_stopped = True
        self.keep = False
        self.waiters += self.patient
        self.patient = []
        self.fail(text)
