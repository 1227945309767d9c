"""Succession: the actors that replace restarted ones.

A subscription belongs to an actor, not to one incarnation of it. So the code that stores a
subscription follows the actor, and receives the ref of each new incarnation. The supervisor
reports the refs that it supervises, and the successor of each. A follower may register before
or after that report.

An actor that has ended may also have a successor for messages from other nodes. For example, an
entity may be passivated while it waits for an answer, and the answer then goes to its next
activation.
"""

from collections.abc import Callable
from typing import Final

from callboard import locks
from callboard.actors.reference import ActorRef

#: Called with the ref of the successor; None if there will be none.
Follower = Callable[[ActorRef | None], object]

#: Ended actors whose successor is known; the oldest are forgotten first.
HEIRS_LIMIT: Final = 10_000


class Succession:
    """The supervised actors of a node, and their followers. Thread-safe."""

    def __init__(self) -> None:
        self._lock = locks.lock("heirs of actors", 760)
        self._supervised: set[ActorRef | None] = set()
        self._followers: dict[ActorRef, list[Follower]] = {}
        self._heirs: dict[int, ActorRef] = {}

    # --- messages of other nodes ---

    def leave_to(self, number: int, successor: ActorRef) -> None:
        """Make a successor receive the messages that other nodes send to an ended actor."""
        with self._lock:
            self._heirs[number] = successor
            if len(self._heirs) > HEIRS_LIMIT:
                del self._heirs[next(iter(self._heirs))]

    def successor(self, number: int) -> ActorRef | None:
        """Return the ref that receives the messages of an ended actor, or None."""
        return self._heirs.get(number)

    # --- followers ---

    def follow(self, ref: ActorRef, follower: Follower) -> None:
        """Call `follower` once, with the ref that replaces this one."""
        with self._lock:
            self._followers.setdefault(ref, []).append(follower)

    def leave(self, ref: ActorRef, follower: Follower) -> None:
        """Remove a follower."""
        with self._lock:
            rest = [other for other in self._followers.pop(ref, ()) if other != follower]
            if rest:
                self._followers[ref] = rest

    def expects(self, ref: ActorRef) -> bool:
        """Return whether a supervisor has yet to report what replaces an actor."""
        return ref in self._supervised

    # --- for supervisors ---

    def passed(self, former: ActorRef | None, successor: ActorRef | None) -> None:
        """Report to the followers of `former` the ref of its successor; None if it has none.

        At the first start of a child `former` is None.
        """
        with self._lock:
            if successor is not None:
                self._supervised.add(successor)
            followers = () if former is None else self._followers.pop(former, ())
        for follower in followers:
            follower(successor)
        # After the calls: `expects` has to be True until all followers were notified.
        with self._lock:
            self._supervised.discard(former)
