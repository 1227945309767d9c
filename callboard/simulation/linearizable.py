"""Whether some order explains what all clients saw: linearizability, key by key.

A history of a key is linearizable if each operation can be given one moment between its begin
and its end such that the operations, in the order of these moments, have the answers that a
model gives. An operation without an answer may be given any later moment, or none. (Herlihy and
Wing, "Linearizability: a correctness condition for concurrent objects", TOPLAS 1990.)

The search goes through begins and ends in their order and keeps all *configurations*: a state
of the model, and which of the operations under way have had their moment. An operation is given
its moment as late as it can be, when an end needs it (Lowe, "Testing for linearizability",
2017). Four things keep the set small, and none changes the verdict:

- of two configurations that differ only in which operations of unknown outcome they used, the
  one that used what the other did, and more, is left out;
- of operations under way with the same name, value and answer the one that ends first is first;
- an operation that the model names in `reads` has its moment as soon as its answer is right;
- keys are judged one by one.
"""

from collections import deque
from collections.abc import Collection, Hashable, Iterable, Iterator
from functools import reduce
from itertools import chain
from operator import and_
from typing import Any, Final

from callboard.kernel.errors import CallboardError
from callboard.simulation.history import History, HistoryViolation, Operation, draw, identity
from callboard.simulation.models import NEVER, Model, agrees
from callboard.support.text import shown

#: Steps of a model after which a search for one key gives up: a minute or so.
STEP_LIMIT: Final = 20_000_000

#: Steps for each try to leave operations out of what is shown, and for all tries of a history.
_TRY_LIMIT: Final = 20_000
_TRIES_LIMIT: Final = 500_000

#: States that are told when there are more ways than one to come to the last operation.
_STATES_SHOWN: Final = 3

#: A configuration: the state, and the bits of the operations under way that had their moment.
_Place = tuple[Hashable, int]


class NotLinearizable(HistoryViolation):
    """No order of the operations explains what the clients were told."""


class NotDecided(CallboardError):
    """A search gave up, which says neither yes nor no."""


def linearizable(model: Model, *, step_limit: int = STEP_LIMIT) -> "Linearizable":
    """Return the checker of a model: each key has to be linearizable by itself.

    Args:
        model: what one key is.
        step_limit: steps of the model for a key before the checker gives up with `NotDecided`.
    """
    return Linearizable(model, step_limit)


class Linearizable:
    """Checks that each key of a history is linearizable."""

    def __init__(self, model: Model, step_limit: int = STEP_LIMIT) -> None:
        self.model = model
        self.step_limit = step_limit

    def __call__(self, history: History) -> None:
        """Judge a history.

        Raises:
            NotLinearizable: a key is not.
            NotDecided: a key needed too many steps, and no other one is wrong.
        """
        undecided = None
        for key, operations in _by_key(history.operations):
            search = _Search(self.model, operations, self.step_limit)
            try:
                failed_at = search.run()
            except NotDecided as error:
                undecided = error
                continue
            if failed_at is not None:
                raise NotLinearizable(self._explain(key, search, failed_at))
        if undecided is not None:
            raise undecided

    def _explain(self, key: Any, search: "_Search", last: Operation) -> str:
        """Say what contradicts what, in as few operations as can be found quickly.

        Either some contradict each other whatever all others did, or there is no moment for the
        last one in what all orders of those before leave; the shorter text is shown.
        """
        assert last.ended is not None
        before = [each for each in search.operations if each.began < last.ended]
        core = _shortest(self.model, before, last)
        states, under_way = search.left
        on = "" if key is None else f" on {shown(key)}"
        said = f"no order of these operations{on} is that of a {type(self.model).__name__}"
        others = len(search.operations) - len(core)
        if len(core) <= max(len(under_way), 2) or len(states) > _STATES_SHOWN:
            left = f"\n  and {others:,} more, whatever they did" if others else ""
            begin = shown(self.model.start)
            return f"{said} which begins as {begin}:\n{draw(core)}{left}"
        begin = " or ".join(sorted(shown(each) for each in states))
        past = len(before) - len(under_way)
        return f"{said} which is {begin} after the {past:,} before:\n{draw(under_way)}"


def _by_key(operations: Iterable[Operation]) -> Iterator[tuple[Any, list[Operation]]]:
    """Return the operations of each key; those that did not happen are left out."""
    keys: dict[Any, tuple[Any, list[Operation]]] = {}
    for each in operations:
        if each.outcome != "failed":
            keys.setdefault(identity(each.key), (each.key, []))[1].append(each)
    yield from keys.values()


class _Search:
    """Goes through one key's begins and ends with all configurations that are left."""

    def __init__(
        self,
        model: Model,
        operations: list[Operation],
        step_limit: int,
        weakened: Collection[int] = (),
    ) -> None:
        """Prepare the events.

        Args:
            model: of the key.
            operations: of the key.
            step_limit: after so many steps the search gives up.
            weakened: places in `operations` whose ends and answers are not looked at.
        """
        self._model = model
        self.operations = operations
        #: Behind a failure: the states before, and the known operations without a moment.
        self.left: tuple[set[Hashable], list[Operation]] = (set(), [])
        self._limit = step_limit
        self.steps = 0
        reads: frozenset[str] = getattr(model, "reads", frozenset())
        self._is_known = [each.outcome == "answered" for each in operations]
        for index in weakened:
            self._is_known[index] = False
        self._is_read = [each.name in reads for each in operations]
        self._kinds = self._numbered()
        #: Operations under way by their kind; of each kind in the order of their ends.
        self._under_way: dict[int, list[int]] = {}
        self._reads: list[int] = []
        self._bits = [0] * len(operations)
        self._free_bits: list[int] = []
        self._bit_count = 0
        self._unknown = 0
        self._results: dict[tuple[Hashable, int], tuple[Hashable] | None] = {}

    def _numbered(self) -> list[int]:
        """Number the operations; those with the same name, value and answer have the same."""
        numbers: dict[Hashable, int] = {}
        kinds = []
        for each, is_known in zip(self.operations, self._is_known, strict=True):
            told = identity(each.answer) if is_known else None
            kind = (each.name, identity(each.value), is_known, told)
            kinds.append(numbers.setdefault(kind, len(numbers)))
        return kinds

    def _events(self) -> list[tuple[int, int, bool]]:
        """Return begins and ends as (moment, operation, whether it is the end)."""
        events = []
        for index, each in enumerate(self.operations):
            if self._is_known[index]:
                assert each.ended is not None
                events.append((each.ended, index, True))
            if self._is_known[index] or not self._is_read[index]:  # else it tells nothing
                events.append((each.began, index, False))
        return sorted(events)

    def run(self) -> Operation | None:
        """Return the operation at whose end no configuration is left; None if there is none."""
        places: set[_Place] = {(self._model.start, 0)}
        for _, index, is_end in self._events():
            if not is_end:
                self._begin(index)
                if self._is_read[index]:
                    places = {self._settled(place) for place in places}
                continue
            after = self._end(index, places)
            if not after:
                self.left = self._told(index, places)
                return self.operations[index]
            places = after
        return None

    def _told(self, index: int, places: set[_Place]) -> tuple[set[Hashable], list[Operation]]:
        """Return the states in which an operation has no moment, and what was under way."""
        happened = reduce(and_, (mask for _, mask in places))
        under_way = [*self._reads, *chain.from_iterable(self._under_way.values()), index]
        waiting = {each for each in under_way if not happened & self._bits[each]}
        known = [self.operations[each] for each in sorted(waiting) if self._is_known[each]]
        return {state for state, _ in places}, known

    def _begin(self, index: int) -> None:
        """Let an operation be under way."""
        if self._free_bits:
            bit = self._free_bits.pop()
        else:
            bit = 1 << self._bit_count
            self._bit_count += 1
        self._bits[index] = bit
        if not self._is_known[index]:
            self._unknown |= bit
        if self._is_read[index]:
            self._reads.append(index)
            return
        alike = self._under_way.setdefault(self._kinds[index], [])
        alike.append(index)
        if self._is_known[index] and len(alike) > 1:
            alike.sort(key=self._end_of)

    def _end_of(self, index: int) -> int:
        """Return the moment at which an operation ended."""
        return self.operations[index].ended or 0

    def _end(self, index: int, places: set[_Place]) -> set[_Place]:
        """Let an operation end; what is left are configurations in which it had its moment.

        Those that used up fewer operations of unknown outcome are looked at first, so what is
        worse than another is found as it comes.
        """
        bit, unknown = self._bits[index], self._unknown
        todo = deque(sorted(places, key=lambda place: (place[1] & unknown).bit_count()))
        better: dict[_Place, list[int]] = {}
        ended: dict[_Place, list[int]] = {}
        while todo:
            self._count(index)
            state, mask = place = todo.popleft()
            used = mask & unknown
            if mask & bit:
                _keep(ended, (state, mask & ~bit & ~unknown), used)
                continue
            if not _keep(better, (state, mask & ~unknown), used):
                continue
            for after, is_unknown in self._moments(place):
                if is_unknown:
                    todo.append(after)
                else:
                    todo.appendleft(after)
        if self._is_read[index]:
            self._reads.remove(index)
        else:
            alike = self._under_way[self._kinds[index]]
            alike.remove(index)
            if not alike:
                del self._under_way[self._kinds[index]]
        self._free_bits.append(bit)
        return {
            (state, mask | used)
            for (state, mask), all_used in ended.items()
            for used in all_used
        }

    def _moments(self, place: _Place) -> Iterator[tuple[_Place, bool]]:
        """Give one more operation its moment; yields what comes, and if it used an unknown."""
        state, mask = place
        bits = self._bits
        for alike in self._under_way.values():
            for index in alike:
                if mask & bits[index]:
                    continue
                after = self._step(state, index)
                if after is not None:
                    yield (
                        self._settled((after[0], mask | bits[index])),
                        not self._is_known[index],
                    )
                break  # those alike come after it

    def _settled(self, place: _Place) -> _Place:
        """Give each read under way its moment whose answer is right."""
        state, mask = place
        for index in self._reads:
            if not mask & self._bits[index] and self._step(state, index) is not None:
                mask |= self._bits[index]
        return state, mask

    def _step(self, state: Hashable, index: int) -> tuple[Hashable] | None:
        """Return the state behind an operation in a tuple; None where its answer is wrong."""
        self._count(index)
        kind = (state, self._kinds[index])
        try:
            return self._results[kind]
        except KeyError:
            operation = self.operations[index]
            after, answer = self._model.step(state, operation.name, operation.value)
            if self._is_known[index]:
                is_right = answer is not NEVER and agrees(answer, operation.answer)
            else:
                is_right = answer is not NEVER
            found = self._results[kind] = (after,) if is_right else None
            return found

    def _count(self, index: int) -> None:
        """Count a step; raise `NotDecided` when there were too many."""
        self.steps += 1
        if self.steps > self._limit:
            operation = self.operations[index]
            on = "" if operation.key is None else f" for {shown(operation.key)}"
            message = (
                f"no verdict{on} after {self._limit:,} steps: too many operations overlap, or "
                "have no answer. Use more keys, fewer clients, or a larger step_limit"
            )
            raise NotDecided(message)


def _keep(kept: dict[_Place, list[int]], place: _Place, used: int) -> bool:
    """Keep what a place used up, unless one that is there used a part of it or the same."""
    others = kept.setdefault(place, [])
    if any(other & used == other for other in others):
        return False
    others[:] = [other for other in others if other & used != used]
    others.append(used)
    return True


def _shortest(model: Model, operations: list[Operation], last: Operation) -> list[Operation]:
    """Return operations that contradict each other, whatever all others did.

    An operation is left out by taking it for one of unknown outcome: if there is no order even
    then, it is because of the others. Halves are tried, then parts of them.
    """
    weakened: set[int] = set()
    left = _TRIES_LIMIT
    size = len(operations)
    while size:
        for first in range(0, len(operations), size):
            chunk = {
                index
                for index in range(first, min(first + size, len(operations)))
                if operations[index] is not last
            } - weakened
            if not chunk or left <= 0:
                continue
            search = _Search(model, operations, min(_TRY_LIMIT, left), weakened | chunk)
            try:
                if search.run() is not None:
                    weakened |= chunk
            except NotDecided:
                pass  # it stays in what is shown
            left -= search.steps
        size //= 2
    return [each for index, each in enumerate(operations) if index not in weakened]
