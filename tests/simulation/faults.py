"""What goes wrong in a life."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from callboard import Future
from tests.simulation.book import Member

if TYPE_CHECKING:
    from tests.simulation.life import Life

FEWEST = 2
"""Members that stay alive, whatever happens."""


class Faults:
    """The faults of one life, and their end."""

    def __init__(self, life: "Life") -> None:
        self.life = life
        self.cluster, self.book, self.random = life.cluster, life.book, life.random
        self.actions: dict[Callable[[], None], int] = {
            self._partition: 2,
            self._one_way: 2,
            self._isolate: 1,
            self._cut: 2,
            self._slow: 1,
            self._narrow: 1,
            self._lose: 1,
            self._heal: 3,
            self._pause: 1,
            self._resume: 2,
            self._change_clock: 1,
            self._dial_twice: 2,
            self._end_node: 1,
            self._restart: 2,
        }
        #: Pairs with a slow, narrow or lossy way between them.
        self._bad_ways: set[tuple[int, int]] = set()

    def end(self) -> None:
        """End all faults: ways are good and whole, frozen nodes go on."""
        self._note("heal")
        self.cluster.heal()
        for one, other in sorted(self._bad_ways):
            pair = self.book.members[one].node, self.book.members[other].node
            self.cluster.delay(*pair, 0.0005)
            self.cluster.bandwidth(*pair, 0)
            self.cluster.loss(*pair, 0.0)
        for member in self.book.alive():
            self._thaw(member)

    def _note(self, *what: object) -> None:
        self.book.disturbed.append(self.cluster.now)
        self.life.note(*what)

    def _pair(self) -> tuple[Member, Member]:
        one, other = self.random.sample(self.book.alive(), 2)
        return one, other

    # --- ways ---

    def _partition(self) -> None:
        one, other = self._pair()
        self._note("partition", one.index, other.index)
        self.cluster.partition(one.node, other.node)

    def _one_way(self) -> None:
        one, other = self._pair()
        self._note("nothing from", one.index, "to", other.index)
        self.cluster.partition(one.node, other.node, both=False)

    def _isolate(self) -> None:
        """Cut a part of the cluster off from the rest."""
        alive = self.book.alive()
        part = self.random.sample(alive, self.random.randint(1, len(alive) - 1))
        self._note("isolate", *(member.index for member in part))
        for one in part:
            for other in alive:
                if other not in part:
                    self.cluster.partition(one.node, other.node)

    def _cut(self) -> None:
        one, other = self._pair()
        self._note("cut", one.index, other.index)
        self.cluster.cut(one.node, other.node)

    def _spoil(self, what: str, value: float, *choices: float) -> None:
        one, other = self._pair()
        chosen = self.random.choice((value, *choices))
        self._bad_ways.add((one.index, other.index))
        self._note(what, one.index, other.index, chosen)
        getattr(self.cluster, what)(one.node, other.node, chosen)

    def _slow(self) -> None:
        self._spoil("delay", 0.0001, 0.05, 0.4)

    def _narrow(self) -> None:
        self._spoil("bandwidth", 2_000.0, 20_000.0, 500_000.0)

    def _lose(self) -> None:
        self._spoil("loss", 0.02, 0.2, 0.5)

    def _heal(self) -> None:
        self._note("heal")
        self.cluster.heal()

    # --- nodes ---

    def _pause(self) -> None:
        active = self.book.active()
        if len(active) > 1:
            member = self.random.choice(active)
            self._note("pause", member.index)
            self.cluster.pause(member.node)
            member.is_paused, member.paused_since = True, self.cluster.now

    def _resume(self) -> None:
        for member in self.book.alive():
            self._thaw(member)

    def _thaw(self, member: Member) -> None:
        if member.is_paused:
            self._note("resume", member.index)
            member.paused = member.paused_until(self.cluster.now)
            member.is_paused = False
            self.cluster.resume(member.node)

    def _change_clock(self) -> None:
        member = self.random.choice(self.book.active())
        member.rate = self.random.uniform(0.95, 1.05)
        self._note("clock of", member.index)
        self.cluster.clock_rate(member.node, member.rate)

    def _end_node(self) -> None:
        alive = self.book.alive()
        if len(alive) <= FEWEST:
            return
        member = self.random.choice(alive)
        if len(self.book.active()) == 1 and not member.is_paused:
            return
        is_crash = self.random.random() < 0.5
        self._note("crash" if is_crash else "kill", member.index)
        member.is_alive = member.is_paused = False
        (self.cluster.crash if is_crash else self.cluster.kill)(member.node)

    def _restart(self) -> None:
        """Start a node again that ended; it dials what it dialed before."""
        taken = {member.slot for member in self.book.alive()}
        gone = [member for member in self.book.members if member.slot not in taken]
        if not gone:
            return
        slot = self.random.choice(sorted({member.slot for member in gone}))
        before = [member for member in gone if member.slot == slot][-1]
        self._note("restart", before.index)
        member = self.life.add(self.cluster.restart(before.node), slot)
        member.rate = before.rate  # the clock is the machine's
        for dialer, listener in sorted(self.book.kept):
            if self.book.members[dialer].slot == slot:
                self._dial(member, listener)

    def _dial_twice(self) -> None:
        """Let two nodes dial each other in the same moment."""
        active = self.book.active()
        if len(active) > 1:
            one, other = self.random.sample(active, 2)
            self.life.note("dial", one.index, other.index)
            self._dial(one, other.slot)
            self._dial(other, one.slot)

    def _dial(self, dialer: Member, slot: int) -> None:
        """Dial the node of a slot; a dial that succeeds is kept."""
        address = next(m for m in self.book.members if m.slot == slot).node.address

        def ended(future: Future[bytes]) -> None:
            if future.exception() is None:
                self.book.kept.add((dialer.index, slot))

        dialer.node._start(dialer.node.aconnect(address, 10.0)).add_done_callback(ended)
