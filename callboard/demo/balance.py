"""The balance of a run: every message that the surviving nodes sent, and what became of it.

Each node keeps an account for each other node: sent = confirmed + lost + in flight, at all
times. The balance adds up the accounts of all nodes that are alive at the end. What a killed
node itself had sent died with its counters and is no part of the sum; what was sent *to* it
is, and shows up as lost as far as nobody confirmed it. When the sensors rest and all delivery
reports are in, nothing is in flight, and the books close exactly.
"""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Balance:
    """Sums of accounts, in messages between nodes (answers included)."""

    sent: int = 0
    delivered: int = 0
    lost: int = 0
    in_flight: int = 0

    @classmethod
    def of(cls, accounts: Iterable["Balance"]) -> "Balance":
        """Add up the accounts of several nodes."""
        total = cls()
        for account in accounts:
            total = cls(
                total.sent + account.sent,
                total.delivered + account.delivered,
                total.lost + account.lost,
                total.in_flight + account.in_flight,
            )
        return total

    @property
    def is_exact(self) -> bool:
        """True when every message is accounted for and none is under way."""
        return self.in_flight == 0 and self.sent == self.delivered + self.lost

    @property
    def unexplained(self) -> int:
        """Messages that were sent and are neither delivered, nor lost, nor under way."""
        return self.sent - self.delivered - self.lost - self.in_flight


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one run showed.

    Attributes:
        balance: the sums of the accounts of all nodes that were alive at the end.
        down_ms: from the kill to the moment when the overseer on A handled the first `Down` of
        a
            sensor on D, three hops away: D lives, but only C led to it. None if nothing was
            killed.
        store: what became of the writes to the store, in words; empty without any.
        service_ms: from the kill to the first reading that the next aggregator handled.
        problem: why the run failed for another reason than the balance; empty if it did not.
    """

    balance: Balance
    down_ms: float | None = None
    service_ms: float | None = None
    store: str = ""
    problem: str = ""

    @property
    def exit_code(self) -> int:
        """0 when the books close exactly, else 1."""
        return 0 if self.balance.is_exact and not self.problem else 1

    def line(self) -> str:
        """Return the last line of the demo."""
        balance = self.balance
        sign = "=" if balance.is_exact else "≠"
        text = (
            f"balance: sent {balance.sent:,} {sign} delivered {balance.delivered:,} "
            f"+ reported lost {balance.lost:,}"
        )
        if balance.in_flight:
            text += f" + still in flight {balance.in_flight:,}"
        if balance.unexplained:
            text += f" + unexplained {balance.unexplained:,}"
        if self.down_ms is not None:
            text += f" · down after {self.down_ms:,.0f} ms over 3 hops"
        if self.service_ms is not None:
            text += f" · back in service after {self.service_ms:,.0f} ms"
        if self.store:
            text += f" · {self.store}"
        return text if not self.problem else f"{text} · failed: {self.problem}"
