"""Credit: how much a node may send to a remote actor with a bounded mailbox. Pure.

A position counts the messages from one node to one actor. The actor's node grants positions: A
*grant* names the highest position that may be sent, so a repeated or late grant does no harm,
and the highest grant is valid. If the bounds include bytes, a grant also limits the bytes of
its messages.

The two sides may disagree, because messages and grants are lost with a path. So a waiting
sender *asks* repeatedly: it sends its position, in order with its messages. When the position
arrives, each earlier message has arrived or is lost, and the receiver continues to count from
that position.

A sender starts before it knows the bounds, with a few messages. Its first position lies beyond
everything it was ever granted, so that a late grant for an earlier ref of the same actor has no
effect.

The receiver divides the free space among the senders that want more, in turn, and always leaves
some for the next one. A grant cannot be taken back, and a sender that has nothing to send keeps
its grant. So a sender without any grant gets one message even if nothing is free; otherwise an
idle sender could block all others.
"""

from typing import Final

from callboard.support.dataclass import dataclass

#: Sightings of this size and above mark a node that supports credit. An earlier release treats
#: them as plain numbers: all numbers of one node have the mark, or none.
KNOWS_CREDIT: Final = 1 << 63

#: A grant without limit: the mailbox is unbounded.
NO_BOUND: Final = (1 << 64) - 1

#: Messages of one grant, at most, so that a faulty node cannot exhaust the positions.
LONGEST_LEAP: Final = 1 << 20

#: Messages that a mailbox with bounds in bytes only is assumed to hold.
ANY_NUMBER: Final = 1 << 16

#: Tolerance of positions: a sender's report may be lower than the count of its messages by this
#: number, because its threads send concurrently.
_SLACK: Final = 16

_ANY_SIZE: Final = float("inf")


class Credit:
    """Credit of a node for one remote actor.

    Attributes:
        sent: its position.
        up_to: the granted position.
        is_known: whether the actor's node has reported bounds.
        is_short: whether the bytes of a grant were used up before its messages. The sender then
            skipped the remaining positions, which the receiver does not know.
        grants: number of grants received.
    """

    __slots__ = ("_base", "_octets", "grants", "is_known", "is_short", "sent", "up_to")

    def __init__(self, base: int, messages: int, octets: int) -> None:
        """Start without known bounds.

        Args:
            base: the highest position ever granted to this node.
            messages: number that may be sent before the bounds are known.
            octets: bytes of these messages.
        """
        self.sent = self._base = base
        self.up_to = base + messages
        self._octets: float = octets
        self.is_known = self.is_short = False
        self.grants = 0

    @property
    def has_sent(self) -> bool:
        """Whether any message was sent."""
        return self.sent > self._base

    def take(self, size: int) -> bool:
        """Count a message of `size` bytes as sent; return False if it must wait."""
        if self.sent >= self.up_to:
            return False
        self.sent += 1
        self._octets -= size
        if self._octets <= 0 and self.sent < self.up_to:
            self.sent = self.up_to
            self.is_short = True
        return True

    def granted(self, up_to: int, octets: int) -> bool:
        """Apply a grant; return whether to ask at once, because it is the first.

        Args:
            up_to: the granted position.
            octets: bytes that may be sent with it; 0 for any number.
        """
        is_new = not self.is_known
        if is_new:
            self.is_known = True
            self.sent = self.up_to  # the rest of the first messages is forfeited
        if up_to > self.up_to:
            self.up_to = min(up_to, self.sent + LONGEST_LEAP)
            self._octets = octets or _ANY_SIZE
            self.grants += 1
        return is_new


@dataclass(slots=True, eq=False)
class _Sender:
    """The receiver's record of one sender."""

    #: Its position by the messages that have arrived.
    arrived: int = 0
    up_to: int = 0
    #: Bytes of the latest grant.
    octets: int = 0
    #: Messages of the latest grant.
    size: int = 0
    #: Whether it has reported its position.
    is_placed: bool = False
    #: Whether it may want more.
    is_hungry: bool = False

    @property
    def outstanding(self) -> int:
        """Granted messages that have not arrived."""
        return max(0, self.up_to - self.arrived)


class Grants:
    """The grants to all senders of one actor with a bounded mailbox."""

    def __init__(self, limit: int | None, octets: int | None) -> None:
        """Start without senders.

        Args:
            limit: messages that the mailbox accepts; None for any number.
            octets: bytes that it accepts; None for any number.
        """
        self._limit = min(limit or ANY_NUMBER, ANY_NUMBER)
        self._octets = octets
        #: The senders by node; the first one is served next.
        self._senders: dict[bytes, _Sender] = {}

    def __contains__(self, node: bytes) -> bool:
        """Return whether a node is known as a sender."""
        return node in self._senders

    def welcome(self, node: bytes) -> tuple[int, int]:
        """Register a sender; return its latest grant: position and bytes."""
        sender = self._senders.setdefault(node, _Sender())
        return sender.up_to, sender.octets

    def leave(self, node: bytes) -> None:
        """Remove a sender."""
        self._senders.pop(node, None)

    @property
    def is_wanted(self) -> bool:
        """Whether a sender may want more."""
        return any(sender.is_hungry for sender in self._senders.values())

    def arrived(self, node: bytes) -> None:
        """Count a message from a sender."""
        sender = self._senders[node]
        sender.arrived += 1
        left = sender.up_to - sender.arrived
        if sender.is_placed and 2 * left <= sender.size and (left <= 0 or self._octets is None):
            sender.is_hungry = True

    def asks(self, node: bytes, position: int) -> None:
        """Record the position of a sender that asks for credit."""
        sender = self._senders.setdefault(node, _Sender())
        if not sender.is_placed or position >= sender.arrived - _SLACK:
            sender.is_placed = True
            sender.arrived = position
            sender.up_to = max(sender.up_to, position)
        sender.is_hungry = not sender.outstanding

    def serve(self, count: int, octet_count: int) -> list[tuple[bytes, int, int]]:
        """Grant the free space to the senders that want more; return node, position and bytes.

        Args:
            count: messages that wait at the actor.
            octet_count: bytes of these messages.
        """
        senders = self._senders
        hungry = [node for node, sender in senders.items() if sender.is_hungry]
        message_count = count + sum(sender.outstanding for sender in senders.values())
        if self._octets is not None:
            octet_count += sum(
                sender.octets for sender in senders.values() if sender.outstanding
            )
        granted = []
        for left, node in zip(range(len(hungry), 0, -1), hungry, strict=True):
            sender = senders[node]
            share, octets = self._share(sender, message_count, octet_count, left + 1)
            if not share:
                continue
            sender.up_to = max(sender.up_to, sender.arrived) + share
            sender.size, sender.octets = share, octets
            sender.is_hungry = False
            message_count, octet_count = message_count + share, octet_count + octets
            # So that the other senders are served first the next time.
            senders[node] = senders.pop(node)
            granted.append((node, sender.up_to, octets))
        return granted

    def _share(
        self, sender: _Sender, message_count: int, octet_count: int, parts: int
    ) -> tuple[int, int]:
        """Return the messages and bytes of one sender's grant; 0 messages for no grant."""
        free = self._limit - message_count
        octets = 0 if self._octets is None else (self._octets - octet_count) // parts
        if free >= 1 and (self._octets is None or octets >= 1):
            return max(1, free // parts), octets
        return (0, 0) if sender.outstanding else (1, 0 if self._octets is None else 1)
