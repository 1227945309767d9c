"""Work that a log does on a thread of its own, while programs go on."""

import threading
from abc import ABC, abstractmethod


class Background(ABC):
    """Works after each `wake`, on a thread of its own; sleeps in between."""

    def __init__(self, name: str, pause: float = 0.0) -> None:
        """Start the thread; wakes that come within `pause` seconds share a turn."""
        self._pause = pause
        self._is_due = False
        self._wanted, self._ended = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @abstractmethod
    def work(self) -> bool:
        """Do what there is to do; returns False if that cannot go on."""

    @property
    def is_ended(self) -> bool:
        """Whether the thread was told to end."""
        return self._ended.is_set()

    def wake(self) -> None:
        """Tell that there is something to do."""
        if not self._is_due:
            self._is_due = True
            self._wanted.set()

    def end(self) -> None:
        """End the thread, behind the work that it is at."""
        self._ended.set()
        self._wanted.set()
        self._thread.join()

    def _run(self) -> None:
        """Work after each pause in which there was a wake, until the end."""
        while True:
            self._wanted.wait()
            if self._ended.wait(self._pause):
                return
            self._wanted.clear()
            self._is_due = False  # before the work: what comes during it is for the next turn
            if not self.work():
                return
