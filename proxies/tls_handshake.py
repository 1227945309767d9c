"""The TLS handshake of one connection, before a link begins on it."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from proxies.tls_socket import TlsSocket

if TYPE_CHECKING:
    from actors.runner import Runner

HANDSHAKE_LIMIT: Final = 10.0
"""Seconds that a TLS handshake may take; a plain one has the same."""

FIRST_WORD_LIMIT: Final = 2.0
"""Seconds in which a dialer has to begin: TLS clients speak first, nodes without TLS never do.

They would wait for each other without end; so the one without TLS learns it soon.
"""


class Handshake:
    """A TLS handshake under way. It ends once: done, failed, late, or cancelled."""

    def __init__(
        self, runner: "Runner", sock: TlsSocket, first_word: float, ended: Callable[[str], None]
    ) -> None:
        """Make one; `begin` starts it.

        Args:
            runner: whose selector and timers are used; all methods run with its role.
            sock: the connection; whoever made the handshake owns it.
            first_word: seconds in which the other side has to say something.
            ended: called with "" or with why it failed.
        """
        self.sock = sock
        self._runner = runner
        self._ended = ended
        self._awaited = 0
        self._timer = runner.call_later(first_word, self._listen_longer, first_word)

    def begin(self) -> None:
        """Say the first word, or wait for it."""
        self._go_on(0)

    def cancel(self) -> None:
        """Forget it: the node closes."""
        self._timer.cancel()
        if self._awaited:
            self._runner.selector.unregister(self.sock)
            self._awaited = 0

    def _go_on(self, _: int) -> None:
        try:
            awaited = self.sock.shake_hands()
        except OSError as error:
            self._end(error.strerror or str(error))
            return
        if not awaited:
            self._end("")
        elif not self._awaited:
            self._runner.selector.register(self.sock, awaited, self._go_on)
        elif awaited != self._awaited:
            self._runner.selector.modify(self.sock, awaited, self._go_on)
        if self._timer.callback is not None:
            self._awaited = awaited

    def _listen_longer(self, waited: float) -> None:
        if self.sock.was_heard and waited < HANDSHAKE_LIMIT:
            rest = HANDSHAKE_LIMIT - waited
            self._timer = self._runner.call_later(rest, self._listen_longer, HANDSHAKE_LIMIT)
            return
        self._end(
            f"the TLS handshake took longer than {waited:g} s"
            if self.sock.was_heard
            else f"it said nothing for {waited:g} s; does it speak TLS?"
        )

    def _end(self, error: str) -> None:
        self.cancel()
        self._ended(error)
