"""An actor with a small mailbox: senders on this and other nodes have to wait."""

import threading

from callboard import Actor, Mailbox, handler

LIMIT = 4


class Small(Actor):
    """Has little room, remembers how much waited at most, and waits for its gate when told."""

    mailbox = Mailbox(limit=LIMIT)

    def __init__(self) -> None:
        self.seen: list[object] = []
        self.gate = threading.Event()
        self.entered = threading.Event()
        self.deepest = 0

    @handler
    def take(self, number: int) -> int:
        self.deepest = max(self.deepest, self.myAddress.target.depth)
        self.seen.append(number)
        return number

    @handler
    def hold(self, _: bytes) -> None:
        self.entered.set()
        assert self.gate.wait(20)
