"""The writes of a clone: kept until the master has acknowledged them.

A master knows how far it has carried out the commands of a writer, so what is sent again after
it was lost is not doubled. Without a master, writes wait for `mutation_buffer_interval`.
"""

from collections import deque
from collections.abc import Sequence

from callboard.channel import ConsumerMessage, CumulativeAck, Producer
from callboard.store.action import PUT_UNIQUE, Action
from callboard.store.effect import Answer, Refused
from callboard.store.entity_id import NIL, EntityId
from callboard.store.errors import RequestTimeout
from callboard.store.options import CloneOptions
from callboard.store.replica import Replica

__all__ = ["CloneWrites"]


class CloneWrites(Replica):
    """The part of a clone that writes; the rest of it is the backend of its producer."""

    _to_master = True

    def __init__(self, entity: EntityId, now: float, options: CloneOptions) -> None:
        """Begin without a master."""
        super().__init__(entity)
        self.now = now
        self.options = options
        self.master: EntityId | None = None
        self.output: Producer[EntityId, Action] | None = None
        self.is_connected = False
        #: When it lost its master, or began without one; None while it has one.
        self.lost_at: float | None = now
        self._seq = 0
        #: Writes that the master has not acknowledged.
        self._writes: deque[Action] = deque()
        #: Questions (`put_unique`) without an answer.
        self._questions: dict[int, Action] = {}
        self._must_attach = False

    def _write(self, actions: Sequence[Action]) -> None:
        room = self.options.buffer_limit - len(self._writes)
        if self._is_too_late():
            room = 0
        if len(actions) > room:
            self._refuse(actions[room:], "the master has not taken what was written before")
            actions = actions[:room]
        if not actions:
            return
        self._keep(actions)
        if self.output is None:
            self._must_attach = self.is_connected
            self._settle()
        else:
            first = self.output.produce_run(actions)
            self._send_actions(self.entity, first, actions, self.master or NIL)

    def _keep(self, actions: Sequence[Action]) -> None:
        self._writes.extend(actions)
        self._seq += len(actions)

    def _settle(self) -> None:
        """Attach as a writer, once, if the step made that necessary."""
        if not self._must_attach or not self.is_connected:
            return
        self._must_attach = False
        assert self.master is not None
        options = self.options
        writes = list(self._writes)
        self.output = Producer(
            self,  # type: ignore[arg-type]
            heartbeat_interval=options.heartbeat_interval,
            timeout=options.connection_timeout,
            buffer_limit=options.buffer_limit,
            seq=self._seq - len(writes),
        )
        self.output.add(self.master)
        if writes:
            first = self.output.produce_run(writes)
            self._send_actions(self.entity, first, writes, self.master)

    def _is_too_late(self) -> bool:
        lost_at = self.lost_at
        limit = self.options.mutation_buffer_interval
        return lost_at is not None and self.now - lost_at >= limit

    def _drop_old_writes(self) -> None:
        if self._writes and self._is_too_late():
            writes = list(self._writes)
            self._writes.clear()
            self._refuse(writes, "no master came within the mutation buffer interval")
        if self._questions and self._is_too_late():
            self._refuse(list(self._questions.values()), "")

    def _refuse(self, actions: Sequence[Action], reason: str) -> None:
        """Give writes up; what waits for an answer gets an error."""
        silent = 0
        for action in actions:
            if action[0] != PUT_UNIQUE:
                silent += 1
            elif self._questions.pop(action[5], None) is not None:
                msg = "the master did not answer; it may have put the value or not"
                self._effects.append(Answer(action[5], RequestTimeout(msg)))
        if silent:
            self._effects.append(Refused(silent, reason))

    def _hear_acknowledgement(self, master: EntityId, message: ConsumerMessage) -> None:
        output = self.output
        if output is None or not output.handle(master, message):
            return
        if isinstance(message, CumulativeAck):
            for _ in range(len(self._writes) - (self._seq - message.seq)):
                self._writes.popleft()
