"""One random life of a cluster whose actors have small mailboxes, by seed.

All that happens in a life of nodes happens here, too; but actors take few messages at a time
and need a while for each, so what other nodes send waits there for credit. What must hold is
the same: order, the accounts of every message, answers within their time, rest in the end. A
message that a mailbox refused would be missing. Senders are code on an event loop, so they
never block.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from callboard import Mailbox, handler
from callboard.actors.errors import AskTimeout, MailboxFull
from tests.simulation import rules
from tests.simulation.book import Ask, Fail, Member, Numbered, PlannedError, Probe, Target
from tests.simulation.life import ASK_TIMEOUT, Life


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
    """Let what is told meanwhile be told by code that must not wait."""
    loop = asyncio.new_event_loop()
    asyncio._set_running_loop(loop)
    try:
        yield
    finally:
        asyncio._set_running_loop(None)
        loop.close()


class CreditLife(Life):
    """Lives one seed."""

    def _spawn(self, member: Member) -> None:
        limit = self.random.choice((1, 2, 4, 4, 50, None))
        octets = self.random.choice((None, None, None, 200, 5000))
        seconds = self.random.choice((0.0, 0.0003, 0.001))
        bounds = None if limit is octets is None else Mailbox(limit=limit, bytes=octets)
        ref = member.node.spawn(SlowProbe.with_options(mailbox=bounds), seconds)
        actor = ref.target.actor
        self.book.targets.append(Target(len(self.book.targets), member, ref, actor, str(ref)))

    def pick(self) -> tuple[Member, Target]:
        """Return a node that can do something, and a probe elsewhere where there is one."""
        for _ in range(20):
            source, target = super().pick()
            if source is not target.host:
                break
        return source, target

    def _flow(self, source: Member, target: Target, interval: float, left: int) -> None:
        if source is not target.host:
            with on_a_loop():
                super()._flow(source, target, interval, left)

    def _tell(self) -> None:
        source, target = self.pick()
        if source is target.host:
            return
        ref = source.node.ref(target.text)
        count = self.random.choice((1, 3, 50, 200))
        self.note("tell", source.index, target.number, count)
        with on_a_loop():
            for _ in range(count):
                ref.tell(Numbered(source.index, self.book.next_number(source, target)))

    def _end_actor(self) -> None:
        with on_a_loop(), suppress(MailboxFull):
            super()._end_actor()

    def ask(self, source: Member, target: Target) -> Ask:
        """Ask a probe, and note when the ask ends."""
        number = self.book.next_number(source, target)
        with on_a_loop():
            future = source.node.ref(target.text).ask(
                Numbered(source.index, number), ASK_TIMEOUT
            )
        now = self.cluster.now
        ask = Ask(source, target, number, ASK_TIMEOUT, now, source.paused_until(now), future)
        future.add_done_callback(lambda _: ask.ends.append(self.cluster.now))
        self.book.asks.append(ask)
        return ask

    def _rest(self) -> None:
        super()._rest()
        for member in self.book.alive():
            waiting = [account.waiting for account in member.node.accounts().values()]
            if any(waiting):
                raise rules.Violation(f"{waiting} messages of node {member.index} wait still")
        self._know_unsent()

    def _know_unsent(self) -> None:
        """Asks whose time was over before they were sent are told so, and nobody else is."""
        for ask in self.book.asks:
            arrived = (ask.source.index, ask.number) in ask.target.actor.arrived
            error = ask.future.exception() if ask.ends and not arrived else None
            if isinstance(error, AskTimeout | MailboxFull):
                letter = (ask.source.index, ask.target.number, ask.number)
                ask.source.dead_letters.append(letter)
