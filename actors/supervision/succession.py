"""Succession: which actor takes the place of one that a supervisor starts again.

What belongs to an actor and not to one incarnation of it, such as a subscription, follows it:
it is told the ref of the next one. The supervisor says which refs it supervises, and what
became of each; followers may come before or after.

What other nodes send to the number of an actor that has ended may have an heir, too:
activations of an entity come and go, and an answer to what one of them told is for the next.
"""

from collections.abc import Callable
from typing import Any, Final

from callboard import locks
from callboard.actors.reference import ActorRef

#: Told the ref that takes the place; None when none will.
Follower = Callable[[ActorRef[Any] | None], object]

#: Actors that have ended of which it is known what takes their messages: the latest ones.
HEIRS_LIMIT: Final = 10_000


class Succession:
    """The supervised actors of a node, and who follows them. From any thread."""

    def __init__(self) -> None:
        self._lock = locks.lock("heirs of actors", 760)
        self._supervised: set[ActorRef[Any] | None] = set()
        self._followers: dict[ActorRef[Any], list[Follower]] = {}
        self._heirs: dict[int, ActorRef[Any]] = {}

    # --- for what comes late ---

    def leave_to(self, number: int, successor: ActorRef[Any]) -> None:
        """Let another ref take what other nodes still send to an actor that has ended."""
        with self._lock:
            self._heirs[number] = successor
            if len(self._heirs) > HEIRS_LIMIT:
                del self._heirs[next(iter(self._heirs))]

    def successor(self, number: int) -> ActorRef[Any] | None:
        """Return what takes messages for an actor that has ended, if anything does."""
        return self._heirs.get(number)

    # --- for what follows ---

    def follow(self, ref: ActorRef[Any], told: Follower) -> None:
        """Be told, once, of the actor that takes the place of this one."""
        with self._lock:
            self._followers.setdefault(ref, []).append(told)

    def leave(self, ref: ActorRef[Any], told: Follower) -> None:
        """Follow it no more."""
        with self._lock:
            kept = [one for one in self._followers.pop(ref, ()) if one != told]
            if kept:
                self._followers[ref] = kept

    def expects(self, ref: ActorRef[Any]) -> bool:
        """Return whether a supervisor still has to say what takes the place of an actor."""
        return ref in self._supervised

    # --- for supervisors ---

    def passed(self, former: ActorRef[Any] | None, successor: ActorRef[Any] | None) -> None:
        """Tell those who follow `former` of its heir; None when there will be none.

        A child that is started for the first time takes the place of None.
        """
        with self._lock:
            if successor is not None:
                self._supervised.add(successor)
            followers = () if former is None else self._followers.pop(former, ())
        for told in followers:
            told(successor)
        with self._lock:  # now that all know: until here an heir was expected
            self._supervised.discard(former)
