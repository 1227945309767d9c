"""One random life of a cluster whose actors have small mailboxes, by seed.

All that happens in a life of nodes happens here, too; but actors handle few messages at a time
and each takes a while, so messages of other nodes wait there for credit. The rules are order,
the accounts of every message, answers within their time, rest in the end. A message that a
mailbox refused would be missing. Senders are code on an event loop, so they never block.
"""

import asyncio
import random
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from callboard import Mailbox, handler
from callboard.actors.errors import AskTimeout, MailboxFull
from callboard.simulation import Cluster, cluster_test
from tests.simulation import rules
from tests.simulation.book import Fail, Member, Numbered, PlannedError, Probe, Target
from tests.simulation.life import FAULTS, Life


class SlowProbe(Probe):
    """A probe that needs a while for each message."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    @handler
    async def note(self, said: Numbered) -> int:
        self.arrived.append((said.source, said.number))
        if self.seconds:
            await self.sleep(self.seconds)
        return said.number

    @handler
    def fail(self, _: Fail) -> None:
        raise PlannedError


@contextmanager
def on_a_loop() -> Iterator[None]:
    """Send the tells of a block from code that must not wait."""
    loop = asyncio.new_event_loop()
    asyncio._set_running_loop(loop)
    try:
        yield
    finally:
        asyncio._set_running_loop(None)
        loop.close()


class CreditLife(Life):
    """Lives in a cluster; `run` raises `Violation` for what must not be."""

    runs = (1, 3, 50, 200)

    def _spawn(self, member: Member, chance: random.Random) -> None:
        limit = chance.choice((1, 2, 4, 4, 50, None))
        octets = chance.choice((None, None, None, 200, 5000))
        seconds = chance.choice((0.0, 0.0003, 0.001))
        bounds = None if limit is octets is None else Mailbox(limit=limit, bytes=octets)
        self.take(member, member.node.spawn(SlowProbe.with_options(mailbox=bounds), seconds))

    def pick(self, chance: random.Random) -> tuple[Member, Target]:
        """Return a node that can do something, and a probe elsewhere where there is one."""
        for _ in range(20):
            source, target = super().pick(chance)
            if source is not target.host:
                break
        return source, target

    @contextmanager
    def telling(self) -> Iterator[None]:
        """Send the tells of a block from code that must not wait."""
        with on_a_loop():
            yield

    def tell(self, source: Member, target: Target) -> None:
        """Tell a remote probe the next number of its pair."""
        if source is not target.host:
            super().tell(source, target)

    def _end_actor(self, chance: random.Random) -> None:
        with suppress(MailboxFull):
            super()._end_actor(chance)

    def _rest(self) -> None:
        super()._rest()
        for member in self.book.alive():
            waiting = [account.waiting for account in member.node.accounts().values()]
            if any(waiting):
                raise rules.Violation(f"{waiting} messages of node {member.index} wait still")
        self._know_unsent()

    def _know_unsent(self) -> None:
        """Exactly the asks that expired before they were sent get this error."""
        for ask in self.book.asks:
            arrived = (ask.source.index, ask.number) in ask.target.actor.arrived
            error = ask.future.exception() if ask.ends and not arrived else None
            if isinstance(error, AskTimeout | MailboxFull):
                letter = (ask.source.index, ask.target.number, ask.number)
                ask.source.dead_letters.append(letter)


@cluster_test(faults=FAULTS)
def live_credit(cluster: Cluster) -> None:
    """Live a life of nodes whose actors have small mailboxes."""
    CreditLife(cluster).run()
