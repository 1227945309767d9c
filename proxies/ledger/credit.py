"""Credit: how much a node may send to an actor elsewhere whose mailbox has bounds. Pure.

A position counts what one node sent to one actor. The actor's node says up to which position it
may go: a *grant* is absolute, so one that comes twice or late does no harm, and the highest
holds. With bounds in bytes a grant says as well how many bytes may go with it.

Both sides may come to differ: messages are lost with a path, grants as well. So a sender that
waits *asks* again and again: it says where it is, in the order of its messages. When that
arrives, everything before it has arrived or never will; its position is simply taken over.

A sender begins before it knows whether there are bounds: a few messages may be under way until
then. Its first position lies behind all that it was ever granted: what was granted for an
earlier ref of the same actor, and comes late, says nothing.

The receiver gives what is free to the senders that want more, in turn, and always leaves some
for the next one. What it gave cannot be taken back, and an idle sender keeps it. So that it
stops nobody, who has nothing left gets one message all the same.
"""

from typing import Final

from callboard.support.dataclass import dataclass

#: Sightings from here on tell that who announces knows of credit. An earlier release takes them
#: as they are: all numbers of a node are above, or none.
KNOWS_CREDIT: Final = 1 << 63

#: A grant of any number: the actor takes what comes.
NO_BOUND: Final = (1 << 64) - 1

#: Messages by which one grant may lead: no positions run out, whatever a node grants.
LONGEST_LEAP: Final = 1 << 20

#: Messages that a mailbox with bounds in bytes only is taken to hold.
ANY_NUMBER: Final = 1 << 16

#: Messages by which a sender may be behind what was counted of it: threads that send at once.
_SLACK: Final = 16

_ANY_SIZE: Final = float("inf")


class Credit:
    """What a node may send to one actor elsewhere.

    Attributes:
        sent: its position.
        up_to: the position that it may go to.
        is_known: whether the actor's node has said that there are bounds.
        is_short: whether the position has left out some of a grant whose bytes were used up:
            the receiver does not know.
        grants: how often more was granted.
    """

    __slots__ = ("_base", "_octets", "grants", "is_known", "is_short", "sent", "up_to")

    def __init__(self, base: int, messages: int, octets: int) -> None:
        """Begin without knowledge.

        Args:
            base: the highest position that this node was ever granted.
            messages: that may be under way without.
            octets: that these may have.
        """
        self.sent = self._base = base
        self.up_to = base + messages
        self._octets: float = octets
        self.is_known = self.is_short = False
        self.grants = 0

    @property
    def has_sent(self) -> bool:
        """Whether any message has gone."""
        return self.sent > self._base

    def take(self, size: int) -> bool:
        """Count a message of `size` bytes as sent; False when it has to wait."""
        if self.sent >= self.up_to:
            return False
        self.sent += 1
        self._octets -= size
        if self._octets <= 0 and self.sent < self.up_to:
            self.sent = self.up_to
            self.is_short = True
        return True

    def granted(self, up_to: int, octets: int) -> bool:
        """Take a grant; returns whether to ask at once, as nothing was known before.

        Args:
            up_to: the position to go to.
            octets: bytes that may go with it; 0 for any number.
        """
        is_new = not self.is_known
        if is_new:
            self.is_known = True
            self.sent = self.up_to  # what is left of the first messages is not used
        if up_to > self.up_to:
            self.up_to = min(up_to, self.sent + LONGEST_LEAP)
            self._octets = octets or _ANY_SIZE
            self.grants += 1
        return is_new


@dataclass(slots=True, eq=False)
class _Guest:
    """What a receiver knows of one sender."""

    #: Its position, as far as its messages have arrived.
    arrived: int = 0
    up_to: int = 0
    #: Bytes that may come with the latest grant.
    octets: int = 0
    #: Messages of the latest grant.
    size: int = 0
    #: Whether it has said where it is.
    is_placed: bool = False
    #: Whether it may want more.
    is_hungry: bool = False

    @property
    def outstanding(self) -> int:
        """Messages that may still come."""
        return max(0, self.up_to - self.arrived)


class Grants:
    """What the senders of one actor with a bounded mailbox may send."""

    def __init__(self, limit: int | None, octets: int | None) -> None:
        """Begin without senders.

        Args:
            limit: messages that the mailbox takes; None for any number.
            octets: bytes that it takes; None for any number.
        """
        self._limit = min(limit or ANY_NUMBER, ANY_NUMBER)
        self._octets = octets
        #: By node; the next one to be served first.
        self._guests: dict[bytes, _Guest] = {}

    def __contains__(self, node: bytes) -> bool:
        """Return whether a node is known as a sender."""
        return node in self._guests

    def welcome(self, node: bytes) -> tuple[int, int]:
        """Take note of a sender; returns what it was granted last: position and bytes."""
        guest = self._guests.setdefault(node, _Guest())
        return guest.up_to, guest.octets

    def leave(self, node: bytes) -> None:
        """Forget a sender."""
        self._guests.pop(node, None)

    @property
    def is_wanted(self) -> bool:
        """Whether a sender may want more."""
        return any(guest.is_hungry for guest in self._guests.values())

    def arrived(self, node: bytes) -> None:
        """Count a message of a sender."""
        guest = self._guests[node]
        guest.arrived += 1
        left = guest.up_to - guest.arrived
        if guest.is_placed and 2 * left <= guest.size and (left <= 0 or self._octets is None):
            guest.is_hungry = True

    def asks(self, node: bytes, position: int) -> None:
        """Take note of where a sender is that may want more."""
        guest = self._guests.setdefault(node, _Guest())
        if not guest.is_placed or position >= guest.arrived - _SLACK:
            guest.is_placed = True
            guest.arrived = position
            guest.up_to = max(guest.up_to, position)
        guest.is_hungry = not guest.outstanding

    def serve(self, count: int, held: int) -> list[tuple[bytes, int, int]]:
        """Give what is free to those who want more; returns node, position and bytes.

        Args:
            count: messages that wait at the actor.
            held: bytes of those.
        """
        guests = self._guests
        hungry = [node for node, guest in guests.items() if guest.is_hungry]
        taken = count + sum(guest.outstanding for guest in guests.values())
        if self._octets is not None:
            held += sum(guest.octets for guest in guests.values() if guest.outstanding)
        granted = []
        for left, node in zip(range(len(hungry), 0, -1), hungry, strict=True):
            guest = guests[node]
            share, octets = self._share(guest, taken, held, left + 1)
            if not share:
                continue
            guest.up_to = max(guest.up_to, guest.arrived) + share
            guest.size, guest.octets = share, octets
            guest.is_hungry = False
            taken, held = taken + share, held + octets
            guests[node] = guests.pop(node)  # the others come first the next time
            granted.append((node, guest.up_to, octets))
        return granted

    def _share(self, guest: _Guest, taken: int, held: int, parts: int) -> tuple[int, int]:
        """Return the messages and bytes that one sender gets; none is nothing."""
        free = self._limit - taken
        octets = 0 if self._octets is None else (self._octets - held) // parts
        if free >= 1 and (self._octets is None or octets >= 1):
            return max(1, free // parts), octets
        return (0, 0) if guest.outstanding else (1, 0 if self._octets is None else 1)
