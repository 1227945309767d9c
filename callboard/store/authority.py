"""The authority of a master: carries out commands, and keeps what is to be made durable.

All changes, also those that add to a value, go out as `put`, `erase`, `expire` or `clear`, so
that clones compute nothing.
"""

import heapq
from collections.abc import Mapping, Sequence
from typing import Final

from callboard.endpoint.data import DataType
from callboard.endpoint.errors import EndpointError
from callboard.store.action import (
    ADD,
    CLEAR,
    ERASE,
    EXPIRE,
    PUT,
    PUT_UNIQUE,
    RESULT,
    SUBTRACT,
    Action,
    Who,
)
from callboard.store.arithmetic import add, empty_value, subtract
from callboard.store.effect import ERASED, Answer, Persist, Row, WriterRow
from callboard.store.entity_id import EntityId
from callboard.store.errors import NoSuchKey
from callboard.store.replica import MISSING, Replica
from callboard.store.stored import Stored, Token

__all__ = ["Authority"]

ANSWERS_KEPT: Final = 256
"""Answers to `put_unique` that are remembered for each writer, which may ask again."""

WRITERS_KEPT: Final = 4096
"""Writers that are remembered when they are gone; the earliest are forgotten beyond it."""

_NS: Final = 10**9


class Authority(Replica):
    """The copy of a store that counts."""

    def __init__(
        self,
        entity: EntityId,
        rows: Mapping[Token, Row],
        writers: Mapping[Who, WriterRow],
        *,
        is_durable: bool,
    ) -> None:
        """Begin with what a backend holds."""
        super().__init__(entity)
        self._who: Who = (entity.endpoint.bytes, entity.object)
        self.entries = {token: value for token, (value, _) in rows.items()}
        self._deadlines: dict[Token, float] = {}
        self._queue: list[tuple[float, int, Token]] = []
        self._queued = 0
        for token, (_, deadline) in rows.items():
            if deadline is not None:
                self._expire_at(token, deadline)
        self.writers: dict[Who, WriterRow] = dict(writers)
        self._persist = Persist() if is_durable else None
        #: Writers of whom something new is to be made durable.
        self._touched: set[Who] = set()
        self._out: list[Action] = []
        self._failures: list[str] = []
        self._carriers = {
            PUT_UNIQUE: self._put_unique,
            ERASE: lambda action: self._remove(action[1], ERASE),
            ADD: self._add,
            SUBTRACT: self._subtract,
            CLEAR: self._clear_all,
        }

    @property
    def next_expiry(self) -> float | None:
        """When the next key expires; None when no key has an end."""
        queue, deadlines = self._queue, self._deadlines
        while queue and deadlines.get(queue[0][2]) != queue[0][0]:
            heapq.heappop(queue)
        return queue[0][0] if queue else None

    def _remove_expired(self) -> None:
        queue, deadlines = self._queue, self._deadlines
        while queue and queue[0][0] <= self.now:
            deadline, _, token = heapq.heappop(queue)
            if deadlines.get(token) == deadline:
                self._remove(token, EXPIRE)

    # --- actions ---

    def _apply(self, actions: Sequence[Action]) -> None:
        """Carry out actions in order. The usual one, a put, has the short way."""
        out, persist, deadlines = self._out, self._persist, self._deadlines
        entries, wants_changes = self.entries, self.wants_changes
        self.processed += len(actions)
        for action in actions:
            if action[0] != PUT:
                carrier = self._carriers.get(action[0])
                if carrier is not None:  # what only masters say is nothing to them
                    carrier(action)
                    entries = self.entries
                continue
            _, token, value, expiry = action
            if wants_changes:
                self._put(token, value, expiry)
            else:
                entries[token] = value
            if expiry is not None:
                self._expire_at(token, self.now + expiry / _NS)
            elif deadlines:
                deadlines.pop(token, None)
            if persist is not None:
                persist.rows[token] = (value, deadlines.get(token))
            out.append(action)

    def _set(self, token: Token, value: Stored, expiry: int | None) -> None:
        self.processed -= 1  # a part of what is carried out and counted already
        self._apply(((PUT, token, value, expiry),))

    def _put_unique(self, action: Action) -> None:
        _, token, value, expiry, who, request = action
        is_own = who == self._who
        inserted = None if is_own else self._writer(who).answers.get(request)
        if inserted is None:
            inserted = token not in self.entries
            if inserted:
                self._set(token, value, expiry)
            if not is_own:
                self._remember(who, request, inserted=inserted)
        if is_own:
            self._effects.append(Answer(request, inserted))
        else:
            self._out.append((RESULT, inserted, who, request))

    def _add(self, action: Action) -> None:
        _, token, operand, initial, expiry = action
        self._change(token, operand, expiry, DataType(initial))

    def _subtract(self, action: Action) -> None:
        _, token, operand, expiry = action
        self._change(token, operand, expiry, None)

    def _change(
        self, token: Token, operand: Stored, expiry: int | None, initial: DataType | None
    ) -> None:
        """Add to a value (if there is a type to start from), or take away from it."""
        try:
            old = self.entries.get(token, MISSING)
            if initial is not None:
                start = empty_value(initial) if old is MISSING else old
                value = add(start, operand)
            elif old is MISSING:
                msg = f"the store has no key {token!r:.60}"
                raise NoSuchKey(msg)
            else:
                value = subtract(old, operand)
        except EndpointError as error:
            self._failures.append(str(error))
            return
        self._set(token, value, expiry)

    def _remove(self, token: Token, kind: int) -> None:
        self._deadlines.pop(token, None)
        if self._erase(token, "erase" if kind == ERASE else "expire"):
            if self._persist is not None:
                self._persist.rows[token] = ERASED
            self._out.append((kind, token))

    def _clear_all(self, _: Action) -> None:
        self._clear()
        self._deadlines = {}
        self._queue = []
        if self._persist is not None:
            self._persist.rows.clear()
            self._persist.is_cleared = True
        self._out.append((CLEAR,))

    def _expire_at(self, token: Token, deadline: float) -> None:
        self._deadlines[token] = deadline
        self._queued += 1
        heapq.heappush(self._queue, (deadline, self._queued, token))

    def _take_persist(self) -> Persist | None:
        """Return what a step wants to make durable."""
        touched, self._touched = self._touched, set()
        if self._persist is None:
            return None
        for who in sorted(touched):
            row = self.writers.get(who)
            if row is not None:
                self._persist.writers[who] = (row.seq, list(row.answers.items()))
        made, self._persist = self._persist, Persist()
        return made or None

    # --- writers ---

    def _writer(self, who: Who) -> WriterRow:
        row = self.writers.get(who)
        if row is None:
            row = self.writers[who] = WriterRow()
            if len(self.writers) > WRITERS_KEPT:
                self._forget_a_writer()
        return row

    def _forget_a_writer(self) -> None:
        for who in self.writers:
            if not self._is_attached(who):
                del self.writers[who]
                if self._persist is not None:
                    self._persist.writers[who] = ERASED
                return

    def _is_attached(self, who: Who) -> bool:
        raise NotImplementedError

    def _remember(self, who: Who, request: int, *, inserted: bool) -> None:
        row = self._writer(who)
        row.answers[request] = inserted
        if len(row.answers) > ANSWERS_KEPT:
            del row.answers[next(iter(row.answers))]
        self._touched.add(who)
