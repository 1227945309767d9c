"""Check linearizability: whether some order of operations explains all answers, key by key.

The history of a key is linearizable if each operation can be assigned one moment between its
call and its answer, such that a model that runs the operations in the order of these moments
gives the same answers. An operation without an answer may be assigned any later moment, or
none. (Herlihy and Wing, "Linearizability: a correctness condition for concurrent objects",
TOPLAS 1990.)

The search processes calls and answers in their order and keeps all *configurations*: a state of
the model, and the set of pending operations that were applied already. An operation is applied
as late as possible, when an answer requires it (Lowe, "Testing for linearizability", 2017).
Four rules keep the set of configurations small without changing the verdict:

- of two configurations that differ only in the applied operations of unknown outcome, the one
  with a superset of the other's is dropped;
- of pending operations with the same name, value and answer, the one that ends first is applied
  first;
- an operation that the model lists in `reads` is applied as soon as its answer is right;
- each key is checked separately.
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
from callboard.support.text import safe_repr

#: Model steps after which the search for one key gives up, about a minute.
STEP_LIMIT: Final = 20_000_000

#: Model steps of each attempt to shorten an explanation, and of all attempts for one history.
_TRY_LIMIT: Final = 20_000
_TRIES_LIMIT: Final = 500_000

#: Maximum number of possible states that an explanation lists.
_STATES_SHOWN: Final = 3

#: A configuration: the state, and a bit mask of the pending operations that were applied.
_Place = tuple[Hashable, int]


class NotLinearizable(HistoryViolation):
    """No order of the operations explains the answers that clients got."""


class NotDecided(CallboardError):
    """A search gave up without a verdict."""


def linearizable(model: Model, *, step_limit: int = STEP_LIMIT) -> "Linearizable":
    """Return a checker that requires each key of a history to be linearizable.

    Args:
        model: the model of one key.
        step_limit: model steps for one key before the checker gives up with `NotDecided`.
    """
    return Linearizable(model, step_limit)


class Linearizable:
    """Checks that each key of a history is linearizable."""

    def __init__(self, model: Model, step_limit: int = STEP_LIMIT) -> None:
        self.model = model
        self.step_limit = step_limit

    def __call__(self, history: History) -> None:
        """Check a history.

        Raises:
            NotLinearizable: a key is not linearizable.
            NotDecided: a key needed too many steps, and no other key is wrong.
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
        """Return an explanation of a violation, with as few operations as are found quickly.

        There are two kinds, and the shorter one is returned: a set of operations that
        contradict each other regardless of all others, or the possible states before the last
        operation together with the operations that were pending.
        """
        assert last.ended is not None
        earlier = [operation for operation in search.operations if operation.began < last.ended]
        core = _shortest(self.model, earlier, last)
        states, under_way = search.left
        on = "" if key is None else f" on {safe_repr(key)}"
        head = f"no order of these operations{on} is possible for a {type(self.model).__name__}"
        other_count = len(search.operations) - len(core)
        if len(core) <= max(len(under_way), 2) or len(states) > _STATES_SHOWN:
            more = (
                f"\n  and {other_count:,} more, regardless of their answers"
                if other_count
                else ""
            )
            start = safe_repr(self.model.start)
            return f"{head} that starts as {start}:\n{draw(core)}{more}"
        start = " or ".join(sorted(safe_repr(operation) for operation in states))
        past = len(earlier) - len(under_way)
        return f"{head} that is {start} after {past:,} earlier ones:\n{draw(under_way)}"


def _by_key(operations: Iterable[Operation]) -> Iterator[tuple[Any, list[Operation]]]:
    """Return the operations of each key, without failed ones."""
    keys: dict[Any, tuple[Any, list[Operation]]] = {}
    for operation in operations:
        if operation.outcome != "failed":
            keys.setdefault(identity(operation.key), (operation.key, []))[1].append(operation)
    yield from keys.values()


class _Search:
    """The search for an order of one key's operations."""

    def __init__(
        self,
        model: Model,
        operations: list[Operation],
        step_limit: int,
        weakened: Collection[int] = (),
    ) -> None:
        """Prepare the search.

        Args:
            model: the model of the key.
            operations: the operations of the key.
            step_limit: number of steps after which the search gives up.
            weakened: indices of operations to treat as unanswered.
        """
        self._model = model
        self.operations = operations
        #: After a failure: the possible states, and the answered operations not yet applied.
        self.left: tuple[set[Hashable], list[Operation]] = (set(), [])
        self._limit = step_limit
        self.steps = 0
        reads: frozenset[str] = getattr(model, "reads", frozenset())
        self._is_known = [operation.outcome == "answered" for operation in operations]
        for index in weakened:
            self._is_known[index] = False
        self._is_read = [operation.name in reads for operation in operations]
        self._kinds = self._numbered()
        #: Pending operations by kind, in the order in which they end.
        self._under_way: dict[int, list[int]] = {}
        self._reads: list[int] = []
        self._bits = [0] * len(operations)
        self._free_bits: list[int] = []
        self._bit_count = 0
        self._unknown = 0
        self._results: dict[tuple[Hashable, int], tuple[Hashable] | None] = {}

    def _numbered(self) -> list[int]:
        """Return the kind of each operation: equal for the same name, value and answer."""
        numbers: dict[Hashable, int] = {}
        kinds = []
        for operation, is_known in zip(self.operations, self._is_known, strict=True):
            answer = identity(operation.answer) if is_known else None
            kind = (operation.name, identity(operation.value), is_known, answer)
            kinds.append(numbers.setdefault(kind, len(numbers)))
        return kinds

    def _events(self) -> list[tuple[int, int, bool]]:
        """Return calls and answers as (position, index of the operation, whether it ends)."""
        events = []
        for index, operation in enumerate(self.operations):
            if self._is_known[index]:
                assert operation.ended is not None
                events.append((operation.ended, index, True))
            if (
                self._is_known[index] or not self._is_read[index]
            ):  # unanswered reads prove nothing
                events.append((operation.began, index, False))
        return sorted(events)

    def run(self) -> Operation | None:
        """Return the first operation whose answer no configuration allows; None without one."""
        places: set[_Place] = {(self._model.start, 0)}
        for _, index, is_end in self._events():
            if not is_end:
                self._begin(index)
                if self._is_read[index]:
                    places = {self._settled(place) for place in places}
                continue
            after = self._end(index, places)
            if not after:
                self.left = self._explain_state(index, places)
                return self.operations[index]
            places = after
        return None

    def _explain_state(
        self, index: int, places: set[_Place]
    ) -> tuple[set[Hashable], list[Operation]]:
        """Return the possible states before a wrong answer, and the pending operations."""
        happened = reduce(and_, (mask for _, mask in places))
        under_way = [*self._reads, *chain.from_iterable(self._under_way.values()), index]
        waiting = {pending for pending in under_way if not happened & self._bits[pending]}
        answered = [
            self.operations[pending] for pending in sorted(waiting) if self._is_known[pending]
        ]
        return {state for state, _ in places}, answered

    def _begin(self, index: int) -> None:
        """Add an operation to the pending ones."""
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
        same_kind = self._under_way.setdefault(self._kinds[index], [])
        same_kind.append(index)
        if self._is_known[index] and len(same_kind) > 1:
            same_kind.sort(key=self._end_of)

    def _end_of(self, index: int) -> int:
        """Return the position of an operation's answer."""
        return self.operations[index].ended or 0

    def _end(self, index: int, places: set[_Place]) -> set[_Place]:
        """End an operation; return the configurations in which it has been applied.

        Configurations with fewer applied operations of unknown outcome are processed first, so
        dominated ones are recognized when they appear.
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
            for following, is_unknown in self._moments(place):
                if is_unknown:
                    todo.append(following)
                else:
                    todo.appendleft(following)
        if self._is_read[index]:
            self._reads.remove(index)
        else:
            same_kind = self._under_way[self._kinds[index]]
            same_kind.remove(index)
            if not same_kind:
                del self._under_way[self._kinds[index]]
        self._free_bits.append(bit)
        return {
            (state, mask | used)
            for (state, mask), all_used in ended.items()
            for used in all_used
        }

    def _moments(self, place: _Place) -> Iterator[tuple[_Place, bool]]:
        """Yield the results of applying one more operation, and whether it is unanswered."""
        state, mask = place
        bits = self._bits
        for same_kind in self._under_way.values():
            for index in same_kind:
                if mask & bits[index]:
                    continue
                following = self._step(state, index)
                if following is not None:
                    yield (
                        self._settled((following[0], mask | bits[index])),
                        not self._is_known[index],
                    )
                break  # others of its kind end later

    def _settled(self, place: _Place) -> _Place:
        """Apply all pending reads whose answers are right."""
        state, mask = place
        for index in self._reads:
            if not mask & self._bits[index] and self._step(state, index) is not None:
                mask |= self._bits[index]
        return state, mask

    def _step(self, state: Hashable, index: int) -> tuple[Hashable] | None:
        """Return the state after an operation, as a tuple; None if its answer is wrong."""
        self._count(index)
        kind = (state, self._kinds[index])
        try:
            return self._results[kind]
        except KeyError:
            operation = self.operations[index]
            following, answer = self._model.step(state, operation.name, operation.value)
            if self._is_known[index]:
                is_right = answer is not NEVER and agrees(answer, operation.answer)
            else:
                is_right = answer is not NEVER
            result = self._results[kind] = (following,) if is_right else None
            return result

    def _count(self, index: int) -> None:
        """Count a step; raise `NotDecided` at the limit."""
        self.steps += 1
        if self.steps > self._limit:
            operation = self.operations[index]
            on = "" if operation.key is None else f" for {safe_repr(operation.key)}"
            message = (
                f"no verdict{on} after {self._limit:,} steps: too many operations overlap or "
                "have no answer; use more keys, fewer clients, or a larger step_limit"
            )
            raise NotDecided(message)


def _keep(used_sets: dict[_Place, list[int]], place: _Place, used: int) -> bool:
    """Add a set of used operations to a configuration, unless it has a subset already.

    Return whether it was added; supersets of it are removed.
    """
    used_before = used_sets.setdefault(place, [])
    if any(used_set & used == used_set for used_set in used_before):
        return False
    used_before[:] = [used_set for used_set in used_before if used_set & used != used]
    used_before.append(used)
    return True


def _shortest(model: Model, operations: list[Operation], last: Operation) -> list[Operation]:
    """Return operations that contradict each other regardless of all others.

    An operation is left out by treating it as unanswered. If there is still no order, the
    other operations are the reason. Halves are tried first, then smaller parts.
    """
    weakened: set[int] = set()
    steps_left = _TRIES_LIMIT
    size = len(operations)
    while size:
        for first in range(0, len(operations), size):
            chunk = {
                index
                for index in range(first, min(first + size, len(operations)))
                if operations[index] is not last
            } - weakened
            if not chunk or steps_left <= 0:
                continue
            search = _Search(model, operations, min(_TRY_LIMIT, steps_left), weakened | chunk)
            try:
                if search.run() is not None:
                    weakened |= chunk
            except NotDecided:
                pass  # keep these operations
            steps_left -= search.steps
        size //= 2
    return [operation for index, operation in enumerate(operations) if index not in weakened]
