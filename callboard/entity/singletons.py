"""The singletons of one type on one node: entities that run whenever it has their slots."""

from typing import Any, Final, Protocol

from callboard.kernel.context import NodeContext

#: Seconds between looks whether they run, and the longest pause of one that cannot begin: each
#: is twice the one before.
KEEP_UP: Final = 0.25
LONGEST_PAUSE: Final = 5.0


class SingletonHost(Protocol):
    """The host of the entities, as their singletons use it."""

    runtime: NodeContext
    #: Guards what handlers on other threads touch as well.
    lock: Any
    is_closed: bool

    def activate_if_served(self, key: str, /) -> None:
        """Make the activation of a key if its slot is here and it is not; needs the lock."""


class Singletons:
    """Those of one host."""

    def __init__(self, host: SingletonHost) -> None:
        """Make one that keeps nothing up."""
        self._host = host
        self._keys: set[str] = set()
        #: Of those that could not begin, the pause and its end.
        self._paused: dict[str, tuple[float, float]] = {}

    def __contains__(self, key: str) -> bool:
        return key in self._keys

    def add(self, key: str) -> None:
        """Let an entity run from here on whenever this node has its slot."""
        with self._host.lock:
            is_first = not self._keys
            self._keys.add(key)
        if is_first:
            self._keep_up()
        else:
            with self._host.lock:
                self.start()

    def _keep_up(self) -> None:
        """Start those that have ended, again and again."""
        host = self._host
        if host.is_closed or host.runtime.is_closed:
            return
        with host.lock:
            self.start()
        host.runtime.call_later(KEEP_UP, self._keep_up)

    def start(self) -> None:
        """Start those that do not run; needs the lock."""
        if not self._keys or self._host.is_closed:
            return
        now = self._host.runtime.now()
        for key in sorted(self._keys):
            if self._paused.get(key, (0.0, 0.0))[1] <= now:
                self._host.activate_if_served(key)

    def could_not_begin(self, key: str) -> None:
        """Take note that an activation failed before it began: a singleton pauses then."""
        if key in self._keys:
            with self._host.lock:
                before, _ = self._paused.get(key, (KEEP_UP / 2, 0.0))
                pause = min(2 * before, LONGEST_PAUSE)
                self._paused[key] = pause, self._host.runtime.now() + pause

    def has_begun(self, key: str) -> None:
        """Take note that an activation has begun well."""
        self._paused.pop(key, None)
