"""A pipe that ends the poll of a runner from any thread."""

import os
import selectors

from actors import contention


class WakeUp:
    """The two ends of the pipe."""

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self._selector = selector
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        self._selector.register(self._read, selectors.EVENT_READ, self._woken)

    def ring(self) -> None:
        """End the current poll, or the next one."""
        try:
            os.write(self._write, b"w")
        except OSError:  # full: it is awake anyway
            pass

    def close(self) -> None:
        """Free the pipe."""
        self._selector.unregister(self._read)
        os.close(self._read)
        os.close(self._write)

    def _woken(self, _: int) -> None:
        try:
            contention.read(self._read, 4096)
        except BlockingIOError:
            pass
