"""Singletons of one type on one node: entities that are active while it owns their slots."""

from typing import Any, Final, Protocol

from callboard.backoff import Backoff
from callboard.kernel.context import NodeContext

#: Seconds between checks that singletons are active.
CHECK_SECONDS: Final = 0.25

#: Longest pause in seconds after failed activations; each pause is twice the one before.
LONGEST_PAUSE: Final = 5.0


class SingletonHost(Protocol):
    """The part of an entity host that its singletons use."""

    runtime: NodeContext
    #: Guards the fields that handlers on other threads use too.
    lock: Any
    is_closed: bool

    def activate_if_served(self, key: str, /) -> None:
        """Activate an entity whose slot is here, unless it is active.

        The caller must hold the lock.
        """


class Singletons:
    """The singletons of one host."""

    def __init__(self, host: SingletonHost) -> None:
        """Start with no singleton."""
        self._host = host
        self._keys: set[str] = set()
        #: By key of a failed activation: its pauses, and the end of the current one.
        self._paused: dict[str, tuple[Backoff, float]] = {}

    def __contains__(self, key: str) -> bool:
        return key in self._keys

    def add(self, key: str) -> None:
        """Keep an entity active while this node owns its slot."""
        with self._host.lock:
            is_first = not self._keys
            self._keys.add(key)
        if is_first:
            self._keep_up()
        else:
            with self._host.lock:
                self.start()

    def _keep_up(self) -> None:
        """Activate singletons that have ended, and schedule the next check."""
        host = self._host
        if host.is_closed or host.runtime.is_closed:
            return
        with host.lock:
            self.start()
        host.runtime.call_later(CHECK_SECONDS, self._keep_up)

    def start(self) -> None:
        """Activate singletons that are not active. The caller must hold the lock."""
        if not self._keys or self._host.is_closed:
            return
        now = self._host.runtime.now()
        for key in sorted(self._keys):
            if key not in self._paused or self._paused[key][1] <= now:
                self._host.activate_if_served(key)

    def activation_failed(self, key: str) -> None:
        """Pause a singleton whose activation failed; each pause is longer than the last."""
        if key in self._keys:
            with self._host.lock:
                backoff, _ = self._paused.get(key, (Backoff(CHECK_SECONDS, LONGEST_PAUSE), 0.0))
                end = self._host.runtime.now() + backoff.next_pause()
                self._paused[key] = backoff, end

    def activation_succeeded(self, key: str) -> None:
        """Forget the pauses of a singleton that is active."""
        self._paused.pop(key, None)
