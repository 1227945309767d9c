"""What goes wrong in a life of topics."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.simulation.topic_book import Place

if TYPE_CHECKING:
    from tests.simulation.topic_life import TopicLife

FEWEST = 3
"""Endpoints that stay alive, whatever happens."""


class TopicFaults:
    """The faults of one life, and their end."""

    def __init__(self, life: "TopicLife") -> None:
        self.life = life
        self.cluster, self.book, self.random = life.cluster, life.book, life.random
        self.actions: dict[Callable[[], None], int] = {
            self._cut: 2,
            self._partition: 2,
            self._isolate: 1,
            self._spoil: 2,
            self._heal: 3,
            self._pause: 1,
            self._change_clock: 1,
            self._leave: 1,
            self._restart: 2,
            self._join: 1,
            self._dial_twice: 2,
        }
        #: True while something is broken: then messages need not arrive.
        self.is_active = False
        self._bad_ways: list[tuple[Place, Place]] = []

    def end(self) -> None:
        """End all faults: ways are good and whole, frozen nodes go on."""
        self._heal()

    def _note(self, *what: object) -> None:
        self.life.changed()
        self.life.note(*what)

    def _pair(self) -> tuple[Place, Place]:
        one, other = self.random.sample(self.book.alive(), 2)
        return one, other

    def _cut(self) -> None:
        one, other = self._pair()
        self._note("cut", one.index, other.index)
        self.cluster.cut(one.node, other.node)

    def _partition(self) -> None:
        one, other = self._pair()
        both = self.random.random() < 0.7
        self._note("partition", one.index, other.index, both)
        self.is_active = True
        self.cluster.partition(one.node, other.node, both=both)

    def _isolate(self) -> None:
        alive = self.book.alive()
        part = self.random.sample(alive, self.random.randint(1, len(alive) - 1))
        self._note("isolate", *(place.index for place in part))
        self.is_active = True
        for one in part:
            for other in alive:
                if other not in part:
                    self.cluster.partition(one.node, other.node)

    def _spoil(self) -> None:
        one, other = self._pair()
        what, values = self.random.choice(
            (
                ("delay", (0.0001, 0.05, 0.4)),
                ("bandwidth", (2_000.0, 50_000.0)),
                ("loss", (0.02, 0.2, 0.5)),
            )
        )
        value = self.random.choice(values)
        self._note(what, one.index, other.index, value)
        self._bad_ways.append((one, other))
        # A way of 50 ms is only slow; everything else may take longer than it takes to settle.
        self.is_active = self.is_active or not (what == "delay" and value < 0.1)
        getattr(self.cluster, what)(one.node, other.node, value)

    def _heal(self) -> None:
        self._note("heal")
        self.cluster.heal()
        for one, other in self._bad_ways:
            self.cluster.delay(one.node, other.node, 0.0005)
            self.cluster.bandwidth(one.node, other.node, 0)
            self.cluster.loss(one.node, other.node, 0.0)
        self._bad_ways.clear()
        for place in self.book.alive():
            if place.is_paused:
                place.is_paused = False
                self.cluster.resume(place.node)
        self.is_active = False

    def _pause(self) -> None:
        active = self.book.active()
        if len(active) > FEWEST:
            place = self.random.choice(active)
            self._note("pause", place.index)
            self.is_active = place.is_paused = True
            self.cluster.pause(place.node)

    def _change_clock(self) -> None:
        place = self.random.choice(self.book.active())
        rate = self.random.uniform(0.95, 1.05)
        self._note("clock of", place.index, round(rate, 3))
        self.cluster.clock_rate(place.node, rate)

    def _leave(self) -> None:
        active = self.book.active()
        if len(active) <= FEWEST:
            return
        place = self.random.choice(active)
        how = self.random.choice(("kill", "crash", "close"))
        self._note(how, place.index)
        if how == "crash":
            self.is_active = True  # silence is noticed after some seconds
        place.is_alive = False
        for taker in self.book.takers:
            if taker.place is place:
                taker.until = min(taker.until, self.cluster.now)
        if how == "close":
            place.node.close()
        else:
            getattr(self.cluster, how)(place.node)

    def _restart(self) -> None:
        """Start a node again that was killed; it dials its neighbors in the ring."""
        taken = {place.slot for place in self.book.alive()}
        gone = [place for place in self.book.places if place.slot not in taken]
        if gone:
            before = self.random.choice(gone)
            last = [place for place in gone if place.slot == before.slot][-1]
            self._note("restart", last.index)
            fresh = self.life.add(self.cluster.restart(last.node), last.slot)
            self.life.link_to_ring(fresh)

    def _join(self) -> None:
        """Let an endpoint join that was not there, by two others."""
        places = self.book.places
        slots = {place.slot for place in places}
        if len(slots) < self.life.most:
            slot = max(slots) + 1
            place = self.life.add(self.cluster.node(f"late{slot}"), slot)
            self._note("join", place.index)
            for other in self.random.sample(self.book.active()[:-1], 2):
                self.life.dial(place, other)

    def _dial_twice(self) -> None:
        one, other = self.random.sample(self.book.active(), 2)
        self._note("dial", one.index, other.index)
        self.life.dial(one, other)
        self.life.dial(other, one)
