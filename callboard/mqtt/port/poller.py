"""What tells a router's sockets that they are ready: it stands between them and the loop.

asyncio makes a handle and a key for each descriptor that it watches, and takes a turn of its
queue for each that is ready. A connection that says one thing and waits pays more for that than
for all the rest. So the sockets have an epoll of their own, which the loop watches as if it
were one socket: an entry in a table for each of them, and one call for each that is ready.
"""

import asyncio
import select
from typing import Any, Final, Protocol

from callboard.actors.runner.loop import RunnerLoop

#: Also when the other side has closed, or the connection broke.
READABLE: Final = 1
#: The values are those of `select.EPOLLIN` and `EPOLLOUT`.
WRITABLE: Final = 4

#: Sockets that one look takes: whatever else the loop has to do comes in between.
MOST_EVENTS: Final = 256


class Polled(Protocol):
    """The owner of a descriptor; all calls come on the loop's thread."""

    def readable(self) -> None:
        """Read, or find out that nothing will come any more."""

    def writable(self) -> None:
        """Write what waits."""


class Poller(Protocol):
    """Watches descriptors."""

    loop: asyncio.AbstractEventLoop

    def watch(self, descriptor: int, owner: Polled, events: int) -> None:
        """Tell the owner of a descriptor of these events from here on; 0 forgets it."""

    def close(self) -> None:
        """Watch nothing any more."""


class SocketPoller:
    """A poller for Linux: one epoll inside of the loop's."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let the loop look after it."""
        self.loop = loop
        self._epoll: Any = select.epoll()
        self._owners: dict[int, Polled] = {}
        if isinstance(loop, RunnerLoop):
            loop.watch(self._epoll.fileno(), self._look)
        else:
            loop.add_reader(self._epoll.fileno(), self._look)

    def watch(self, descriptor: int, owner: Polled, events: int) -> None:
        """Tell the owner of a descriptor of these events from here on; 0 forgets it."""
        owners = self._owners
        if descriptor not in owners:
            if events:
                self._epoll.register(descriptor, events)
                owners[descriptor] = owner
        elif events:
            self._epoll.modify(descriptor, events)
        else:
            del owners[descriptor]
            self._epoll.unregister(descriptor)

    def close(self) -> None:
        """Watch nothing any more."""
        if not self._epoll.closed:
            if isinstance(self.loop, RunnerLoop):
                self.loop.unwatch(self._epoll.fileno())
            else:
                self.loop.remove_reader(self._epoll.fileno())
            self._epoll.close()
            self._owners.clear()

    def _look(self, _events: int = 0) -> None:
        """Call the owners of the descriptors that are ready."""
        owners = self._owners
        for descriptor, events in self._epoll.poll(0, MOST_EVENTS):
            owner = owners.get(descriptor)
            if owner is None:
                continue  # another owner, called before, has ended it
            if events != WRITABLE:  # an error or the end is found by reading
                owner.readable()
            if events & WRITABLE:
                owner.writable()


class LoopPoller:
    """A poller by the loop's own means, for systems without epoll."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Watch nothing yet."""
        self.loop = loop
        self._watched: dict[int, int] = {}

    def watch(self, descriptor: int, owner: Polled, events: int) -> None:
        """Tell the owner of a descriptor of these events from here on; 0 forgets it."""
        before = self._watched.pop(descriptor, 0)
        if events:
            self._watched[descriptor] = events
        changed = events ^ before
        if changed & events & READABLE:
            self.loop.add_reader(descriptor, owner.readable)
        elif changed & READABLE:
            self.loop.remove_reader(descriptor)
        if changed & events & WRITABLE:
            self.loop.add_writer(descriptor, owner.writable)
        elif changed & WRITABLE:
            self.loop.remove_writer(descriptor)

    def close(self) -> None:
        """Watch nothing any more."""
        for descriptor in self._watched:
            self.loop.remove_reader(descriptor)
            self.loop.remove_writer(descriptor)
        self._watched.clear()


def make_poller(loop: asyncio.AbstractEventLoop) -> Poller:
    """Return the poller for this system."""
    return SocketPoller(loop) if hasattr(select, "epoll") else LoopPoller(loop)
