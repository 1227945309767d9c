"""The life of proxies on three nodes: host A has an actor, holders B and C get refs to it.

Each node runs the very machines that the broker drives. Events, in any order:
A sends its ref; B and C pass it on to each other, let go of it, or monitor the actor; the
actor ends; frames arrive; the path between A and a holder moves, in either direction, and
frames on the old one arrive later or never; the way between A and a holder breaks
and heals, and each end finds it lost in between or does not; a node crashes.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

from callboard.actors.exit_reason import ExitReason
from callboard.proxies.ledger.registry import HolderRegistry
from tests.search.explorer import Model
from tests.search.lifetime_nodes import (
    AT_ONCE,
    HOLDERS,
    Holder,
    Host,
    Local,
    holder_facts,
    host_facts,
)

# The view of one end of the way between A and a holder.
FINE, MOVED, ACTIVE, LOST = range(4)
# The way itself; one that ends at a crashed node is gone.
UP, DOWN, GONE = range(3)


class Way(NamedTuple):
    """The way between A and a holder: the frames on it, and what its ends see."""

    up: tuple[Any, ...] = ()  # from the holder to A
    old_up: tuple[Any, ...] = ()
    down: tuple[Any, ...] = ()  # from A to the holder
    old_down: tuple[Any, ...] = ()
    state: int = UP
    holder_sees: int = FINE
    host_sees: int = FINE
    was_known: bool = False  # to A, when the actor ended


class State(NamedTuple):
    host: int
    holders: tuple[int, int]
    ways: tuple[Way, Way]
    passed: tuple[int, int]  # refs under way from B to C, and back
    left: "Budget"
    crashed: str = ""


class Budget(NamedTuple):
    """Limits for the number of each event."""

    sends: tuple[int, int] = (1, 1)
    forwards: int = 1
    watches: tuple[int, int] = (1, 1)
    ends: int = 1
    moves: int = 0
    breaks: int = 0
    heals: int = 0
    crashes: int = 0


@dataclass
class Lifetimes(Model[State]):
    """One configuration."""

    budget: Budget
    registry: type[HolderRegistry] = HolderRegistry

    def __post_init__(self) -> None:
        self._host = Local(Host(self.registry), host_facts)
        self._holder = Local(Holder(), holder_facts)

    def start(self) -> State:
        holder = self._holder.first
        return State(self._host.first, (holder, holder), (Way(), Way()), (0, 0), self.budget)

    # --- events ---

    def steps(self, state: State) -> list[tuple[Any, State]]:
        found: list[tuple[Any, State]] = []
        if state.crashed != "A":
            self._steps_of_host(state, found)
        for side in (0, 1):
            if state.crashed != "BC"[side]:
                self._choices_of_holder(state, side, found)
                self._arrivals_at_holder(state, side, found)
            self._steps_of_way(state, side, found)
        if state.left.crashes:
            found += [(f"{node} crashes", _crashed(state, node)) for node in "ABC"]
        return found

    def _steps_of_host(self, state: State, found: list[tuple[Any, State]]) -> None:
        left = state.left
        for side in (0, 1):
            way, name = state.ways[side], "BC"[side]
            if left.sends[side] and way.state == UP and way.host_sees <= MOVED:
                spent = left._replace(sends=_less(left.sends, side))
                found.append(
                    (
                        f"A sends {name} a ref",
                        _sent_down(state, side, "ref")._replace(left=spent),
                    )
                )
            if way.state == UP and way.host_sees <= MOVED:
                for old, frames in ((False, way.up), (True, way.old_up)):
                    if frames:
                        event = (frames[0][0], HOLDERS[side], frames[0][1])
                        rest = (
                            way._replace(old_up=frames[1:])
                            if old
                            else way._replace(up=frames[1:])
                        )
                        after = self._at_host(_with_way(state, side, rest), event)
                        found.append((f"A takes {frames[0]} of {name}", after))
            if way.host_sees == ACTIVE:
                rest = way._replace(host_sees=LOST, was_known=False)
                after = self._at_host(_with_way(state, side, rest), ("lost", HOLDERS[side]))
                found.append((f"A lost {name}", after))
            if way.state == UP and way.host_sees != FINE:
                rest = way._replace(host_sees=FINE)
                after = self._at_host(_with_way(state, side, rest), ("renew", HOLDERS[side]))
                found.append((f"A sees the path to {name}", after))
        if left.ends:
            holds = self._host.facts[state.host].holds
            ways = tuple(
                way._replace(was_known=known)
                for way, known in zip(state.ways, holds, strict=True)
            )
            spent = left._replace(ends=0)
            after = self._at_host(state._replace(ways=ways, left=spent), ("end",))  # type: ignore[arg-type]
            found.append(("the actor ends", after))

    def _choices_of_holder(
        self, state: State, side: int, found: list[tuple[Any, State]]
    ) -> None:
        left, way, name = state.left, state.ways[side], "BC"[side]
        facts = self._holder.facts[state.holders[side]]
        if not facts.held:
            return
        if left.forwards and not state.crashed:
            spent = left._replace(forwards=left.forwards - 1)
            more = _more(state.passed, side)
            found.append((f"{name} passes it on", state._replace(passed=more, left=spent)))
        if not facts.watched:
            found.append((f"{name} lets go", self._at_holder(state, side, ("drop",))))
        if left.watches[side]:
            spent = left._replace(watches=_less(left.watches, side))
            after = self._at_holder(state._replace(left=spent), side, ("watch",))
            if way.holder_sees == LOST:
                after = self._at_holder(after, side, ("lost",))
            found.append((f"{name} monitors", after))

    def _arrivals_at_holder(
        self, state: State, side: int, found: list[tuple[Any, State]]
    ) -> None:
        way, name = state.ways[side], "BC"[side]
        if state.passed[1 - side]:
            rest = state._replace(passed=_less(state.passed, 1 - side))
            found.append((f"{name} takes a ref", self._at_holder(rest, side, ("ref",))))
        if way.state == UP and way.holder_sees <= MOVED:
            for old, frames in ((False, way.down), (True, way.old_down)):
                if frames:
                    gone = (
                        way._replace(old_down=frames[1:])
                        if old
                        else way._replace(down=frames[1:])
                    )
                    after = self._at_holder(_with_way(state, side, gone), side, frames[0])
                    found.append((f"{name} takes {frames[0]} of A", after))
        if way.holder_sees == ACTIVE:
            seen = _with_way(state, side, way._replace(holder_sees=LOST))
            found.append((f"{name} lost A", self._at_holder(seen, side, ("lost",))))
        if way.state == UP and way.holder_sees != FINE:
            seen = _with_way(state, side, way._replace(holder_sees=FINE))
            found.append(
                (f"{name} sees the path to A", self._at_holder(seen, side, ("renew",)))
            )

    def _steps_of_way(self, state: State, side: int, found: list[tuple[Any, State]]) -> None:
        left, way, name = state.left, state.ways[side], "BC"[side]
        if way.old_up:
            found.append(
                (f"old {name}-A lost", _with_way(state, side, way._replace(old_up=())))
            )
        if way.old_down:
            lost = way._replace(old_down=())
            found.append((f"old A-{name} lost", _with_way(state, side, lost)))
        if left.moves and way.state == UP:
            spent = state._replace(left=left._replace(moves=left.moves - 1))
            if way.up and not way.old_up and way.holder_sees <= MOVED:
                moved = way._replace(up=(), old_up=way.up, holder_sees=MOVED)
                found.append((f"{name}-A moves", _with_way(spent, side, moved)))
            if way.down and not way.old_down and way.host_sees <= MOVED:
                moved = way._replace(down=(), old_down=way.down, host_sees=MOVED)
                found.append((f"A-{name} moves", _with_way(spent, side, moved)))
        if left.breaks and way.state == UP:
            spent = state._replace(left=left._replace(breaks=left.breaks - 1))
            found.append((f"A-{name} breaks", _with_way(spent, side, _broken(way, DOWN))))
        if left.heals and way.state == DOWN:
            spent = state._replace(left=left._replace(heals=left.heals - 1))
            found.append((f"A-{name} heals", _with_way(spent, side, way._replace(state=UP))))

    def _at_host(self, state: State, event: tuple[Any, ...]) -> State:
        host, frames = self._host.take(state.host, event)
        state = state._replace(host=host)
        for side, held in enumerate(self._host.facts[host].holds):
            if state.ways[side].was_known and not held:  # it begins as one that comes too late
                way = state.ways[side]._replace(was_known=False)
                state = _with_way(state, side, way)
        for node, *frame in frames:
            state = _sent_down(state, HOLDERS.index(node), *frame)
        return state

    def _at_holder(self, state: State, side: int, event: tuple[Any, ...]) -> State:
        number, frames = self._holder.take(state.holders[side], event)
        holders = (number, state.holders[1]) if side == 0 else (state.holders[0], number)
        state = state._replace(holders=holders)
        way = state.ways[side]
        if frames and way.state == UP and way.holder_sees <= MOVED:
            state = _with_way(state, side, way._replace(up=way.up + tuple(frames)))
        return state

    # --- rules ---

    def check(self, state: State) -> bool:
        for side in (0, 1):
            for reasons in self._holder.facts[state.holders[side]].told:
                assert len(reasons) <= 1, f"{'BC'[side]}: a monitor fired twice"
                if reasons and reasons[0] in (ExitReason.ERROR, ExitReason.NOT_FOUND, AT_ONCE):
                    assert not self._host.facts[state.host].alive, "told of an end too early"
        if not _is_at_rest(state):
            return False
        for side in (0, 1):
            if state.crashed == "BC"[side]:
                host = self._host.facts[state.host]
                assert not host.holds[side], f"A keeps what {state.crashed} held"
            else:
                self._check_at_rest(state, side)
        return True

    def _check_at_rest(self, state: State, side: int) -> None:
        way, name = state.ways[side], "BC"[side]
        host = self._host.facts[state.host]
        holder = self._holder.facts[state.holders[side]]
        if way.state != UP:
            assert not holder.watched, f"{name}: A is lost, a monitor did not fire"
            assert state.crashed == "A" or not host.holds[side], f"A keeps what {name} held"
        elif holder.held:
            assert host.holds[side], f"A does not know of the proxy of {name}"
            assert holder.down != host.alive, f"{name} missed a down"
            assert host.alive or not holder.watched, f"{name}: a monitor did not fire"
        else:
            assert not host.holds[side], f"A keeps an entry of {name} for ever"
        if way.was_known:
            wrong = (ExitReason.NOT_FOUND,)
            assert wrong not in holder.told, f"{name} was told a wrong reason"


def _is_at_rest(state: State) -> bool:
    """Return whether nothing more happens without an event."""
    if state.crashed:
        passed = False  # frames to or from a crashed node do not count here
        if state.crashed == "A":
            passed = any(state.passed)
        elif state.crashed == "B":
            passed = bool(state.passed[0])
        else:
            passed = bool(state.passed[1])
        if passed:
            return False
    elif any(state.passed):
        return False
    for side, way in enumerate(state.ways):
        if way.up or way.old_up or way.down or way.old_down:
            return False
        resting = FINE if way.state == UP else LOST
        if state.crashed != "A" and way.host_sees != resting:
            return False
        if state.crashed != "BC"[side] and way.holder_sees != resting:
            return False
    return True


def _with_way(state: State, side: int, way: Way) -> State:
    return state._replace(ways=(way, state.ways[1]) if side == 0 else (state.ways[0], way))


def _sent_down(state: State, side: int, *frame: Any) -> State:
    way = state.ways[side]
    if way.state != UP or way.host_sees > MOVED:
        return state
    return _with_way(state, side, way._replace(down=(*way.down, frame)))


def _broken(way: Way, state: int) -> Way:
    return Way(
        state=state,
        holder_sees=LOST if way.holder_sees == LOST else ACTIVE,
        host_sees=LOST if way.host_sees == LOST else ACTIVE,
        was_known=way.was_known,
    )


def _crashed(state: State, node: str) -> State:
    ways = list(state.ways)
    for side in (0, 1):
        if node in ("A", "BC"[side]):
            ways[side] = _broken(ways[side], GONE)
    left = state.left._replace(crashes=state.left.crashes - 1)
    passed = state.passed
    if node == "B":
        passed = (passed[0], 0)
    elif node == "C":
        passed = (0, passed[1])
    return state._replace(ways=(ways[0], ways[1]), passed=passed, left=left, crashed=node)


def _less(pair: tuple[int, int], side: int) -> tuple[int, int]:
    return (pair[0] - 1, pair[1]) if side == 0 else (pair[0], pair[1] - 1)


def _more(pair: tuple[int, int], side: int) -> tuple[int, int]:
    return (pair[0] + 1, pair[1]) if side == 0 else (pair[0], pair[1] + 1)
