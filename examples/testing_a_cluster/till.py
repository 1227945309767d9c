"""The tested program: tills of a shop send their sales to an office, which keeps a journal.

A till repeats a sale until the office confirms it, so the office must recognize sales that it
has already. Its journal survives a power failure, because it answers only after `fsync`.

Run its tests with `pytest` in this folder.
"""

from dataclasses import dataclass
from typing import Protocol

from callboard import Actor, Query, handler, message
from callboard.errors import ActorDown, AskTimeout, NodeUnreachable, NotRegistered


@message("example.Sale")
@dataclass(frozen=True)
class Sale(Query[int]):
    till: str
    number: int
    cents: int


@message("example.Total")
@dataclass(frozen=True)
class Total(Query[int]):
    """Requests the sum of all sales, in cents."""


class JournalFile(Protocol):
    """The methods of an open file that the office uses; real and simulated files have them."""

    def write(self, data: bytes) -> int: ...
    def pread(self, size: int, offset: int) -> bytes: ...
    def truncate(self, size: int) -> None: ...
    def size(self) -> int: ...
    def fsync(self) -> None: ...


class Office(Actor):
    """Keeps the sales of all tills, one line each."""

    def __init__(self, journal: JournalFile) -> None:
        self.journal = journal
        self.sales: dict[tuple[str, int], int] = {}
        content = journal.pread(journal.size(), 0)
        whole = content[: content.rfind(b"\n") + 1]  # a crash may tear the last line
        journal.truncate(len(whole))
        for line in whole.decode().splitlines():
            till, number, cents = line.split()
            self.sales[till, int(number)] = int(cents)

    @handler
    def sale(self, sale: Sale) -> int:
        """Record a sale once; after the answer it is on the disk."""
        if (sale.till, sale.number) not in self.sales:
            self.journal.write(f"{sale.till} {sale.number} {sale.cents}\n".encode())
            self.journal.fsync()
            self.sales[sale.till, sale.number] = sale.cents
        return sale.number

    @handler
    def total(self, _: Total) -> int:
        return sum(self.sales.values())


class Till(Actor):
    """Sends each sale until the office has confirmed it."""

    def __init__(self, name: str, office: str) -> None:
        self.name, self.office, self.number = name, office, 0

    @handler
    async def take(self, cents: int) -> int:
        """Sell; the answer is the number of the sale, after the office has confirmed it."""
        self.number += 1
        sale = Sale(self.name, self.number, cents)
        while True:
            try:
                office = await self.node.aremote_actor(self.office)
                return await office.ask(sale, timeout=2.0)
            except (ActorDown, AskTimeout, NodeUnreachable, NotRegistered):
                await self.sleep(0.5)
