"""Cache of replies by idempotency key, so that a repeated ask is not handled twice.

An ask with retries carries a key. The actor handles the first message with a key. A later
message with the same key is not handled: if the reply is still pending, the later message waits
for it, and otherwise it gets the cached reply. The node of the asker is part of the key, so
another node cannot obtain a reply by guessing the key.
"""

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any, Final

from callboard import locks
from callboard.actors.asking.overdue import MARGIN_SECONDS
from callboard.actors.asking.reply import Reply
from callboard.actors.errors import ActorDown, AskTimeout, MailboxFull
from callboard.actors.mailbox import size_of
from callboard.actors.reference import ActorRef, Asker, Home
from callboard.actors.values import Answer
from callboard.support.calls import Callback

#: Seconds that a reply is cached.
KEPT_SECONDS: Final = 60.0

#: Replies cached for one actor; the oldest are dropped first.
KEPT_BY_ACTOR: Final = 1_000

#: Bytes of all replies that a node caches, as `size_of` and `KEPT_OVERHEAD` estimate them.
KEPT_BYTES: Final = 64 * 1024 * 1024
KEPT_OVERHEAD: Final = 512

#: Repeats that wait for one reply; the oldest are dropped, as an asker needs only its latest.
JOINED_LIMIT: Final = 100

#: Errors of messages that were not handled, or not completely, so that a repeat is handled.
#: Errors of other packages declare this by an attribute `nothing_happened`.
_NOT_KEPT: Final = (ActorDown, AskTimeout, MailboxFull)

#: The number of the actor, the node of the asker (empty for this one), and the key.
Place = tuple[int, bytes, bytes]


class CachedReply(Reply):
    """The one reply shared by all attempts of an ask with the same idempotency key."""

    __slots__ = ("_askers", "_keeper", "_outcome", "deadline", "is_done", "place", "size")

    expects: Final = True
    is_done: bool

    def __init__(
        self, keeper: "ReplyCache", place: Place, asker: Asker, deadline: float | None
    ) -> None:
        self._keeper = keeper
        self._askers = deque([asker], maxlen=JOINED_LIMIT)
        self._outcome: tuple[Any, BaseException | None] | None = None
        self.place = place
        self.deadline = deadline
        self.is_done = False
        #: Estimated size in bytes.
        self.size = 0

    def join(self, asker: Asker) -> None:
        """Add another message of the same ask, which receives the same reply."""
        with self._keeper.lock:
            outcome = self._outcome
            if outcome is None:
                self._askers.append(asker)
        if outcome is None:
            asker.mark_handled()
        else:
            _send(asker, *outcome)

    @property
    def node(self) -> bytes:
        """The node of the asker; empty for this one."""
        return self.place[1]

    def is_asked_by(self, is_it: Callable[[Asker], bool]) -> bool:
        """Return whether the predicate holds for one of the askers."""
        return any(is_it(asker) for asker in list(self._askers))

    def set_result(self, value: Answer) -> bool:
        """Cache the answer and send it to all askers."""
        return self._settle(value, None)

    def set_exception(self, error: BaseException) -> bool:
        """Send the error to all askers; cache it if the message was handled."""
        return self._settle(None, error)

    def mark_handled(self) -> None:
        """Record that the message was handled; the answer may follow later."""
        for asker in list(self._askers):
            asker.mark_handled()

    def reference(self, runtime: Home) -> ActorRef:
        """Return a one-shot address that answers the ask."""
        return runtime.reply_ref(self)

    def _settle(self, value: Answer, error: BaseException | None) -> bool:
        """Store the outcome and send it to all askers; return False if it was set before."""
        outcome = value if error is None else error
        # `size_of` may run user code, so it is called before the lock is acquired.
        size = KEPT_OVERHEAD + size_of(value)
        is_handled = not getattr(outcome, "nothing_happened", False)
        with self._keeper.lock:
            if self.is_done:
                return False
            self.is_done = True
            self._outcome = value, error
            askers, self._askers = self._askers, deque()
            self.size = size
            is_kept = is_handled and not isinstance(error, _NOT_KEPT)
            dropped = self._keeper.settled(self, is_kept=is_kept)
        del dropped  # not while the lock is held, because their finalizers may run user code
        for asker in askers:
            _send(asker, value, error)
        return True


class ReplyCache:
    """The replies that one node caches, with limits for time, number and bytes."""

    def __init__(self, now: Callable[[], float], call_later: Callback) -> None:
        self._now = now
        self._call_later = call_later
        #: Guards the tables and the outcome of each reply.
        self.lock = locks.lock("kept answers", 750)
        self._answers: dict[Place, CachedReply] = {}
        #: Cached replies in the order of their expiry, and by actor.
        self._due: OrderedDict[CachedReply, float] = OrderedDict()
        self._of: dict[int, OrderedDict[CachedReply, None]] = {}
        #: Bytes of the cached replies.
        self.octets = 0
        self._is_timed = False

    def __len__(self) -> int:
        """Return the number of cached and pending replies."""
        return len(self._answers)

    def admit(
        self, number: int, key: bytes, asker: Asker, deadline: float | None = None
    ) -> CachedReply | None:
        """Return the reply with which to handle a message, or None if it is a repeat.

        A repeat gets the pending or cached reply of the first message.

        Args:
            number: number of the actor.
            key: key of the ask.
            asker: sender of the message.
            deadline: deadline of the ask.
        """
        place = number, asker.node, key
        with self.lock:
            reply = self._answers.get(place)
            if reply is None:
                reply = self._answers[place] = CachedReply(self, place, asker, deadline)
                if deadline is not None and not self._is_timed:
                    self._is_timed = True
                    self._call_later(KEPT_SECONDS, self._expire)
                return reply
        reply.join(asker)
        return None

    def repeats(self, number: int, key: bytes, asker: Asker) -> bool:
        """Answer a message to an ended actor from the cache.

        Return False if it has no answer.
        """
        reply = self._answers.get((number, asker.node, key))
        if reply is None or not reply.is_done:
            return False
        reply.join(asker)
        return True

    def settled(self, answer: CachedReply, *, is_kept: bool) -> list[CachedReply]:
        """Cache a reply, or remove its key from the tables. The caller must hold the lock.

        Returns:
            Older replies that were dropped; the caller releases them without the lock.
        """
        if not is_kept:
            self._answers.pop(answer.place, None)
            return []
        dropped: list[CachedReply] = []
        of = self._of.setdefault(answer.place[0], OrderedDict())
        of[answer] = None
        self._due[answer] = self._now() + KEPT_SECONDS
        self.octets += answer.size
        if len(of) > KEPT_BY_ACTOR:
            dropped.append(self._drop(next(iter(of))))
        while self.octets > KEPT_BYTES:
            dropped.append(self._drop(next(iter(self._due))))
        if not self._is_timed:
            self._is_timed = True
            self._call_later(KEPT_SECONDS, self._expire)
        return dropped

    def _drop(self, answer: CachedReply) -> CachedReply:
        """Remove a reply from the tables, and return it. The caller must hold the lock."""
        self._answers.pop(answer.place, None)
        if self._due.pop(answer, None) is None:
            return answer  # dropped already by a nested call, such as a finalizer
        self.octets -= answer.size
        of = self._of.get(answer.place[0])
        if of is not None:
            of.pop(answer, None)
            if not of:
                self._of.pop(answer.place[0], None)
        return answer

    def _expire(self) -> None:
        """Drop expired replies, and schedule the next check."""
        now, dropped = self._now(), list[CachedReply]()
        with self.lock:
            while self._due and next(iter(self._due.values())) <= now:
                dropped.append(self._drop(next(iter(self._due))))
            # The last attempt has timed out, so no further repeat can arrive.
            limited = [
                (answer, answer.deadline)
                for answer in self._answers.values()
                if answer.deadline is not None and not answer.is_done
            ]
            over = [answer for answer, end in limited if end + MARGIN_SECONDS <= now]
            for answer in over:
                dropped.append(self._answers.pop(answer.place))
            self._is_timed = bool(self._due) or len(over) < len(limited)
            if self._due:
                self._call_later(next(iter(self._due.values())) - now, self._expire)
            elif self._is_timed:
                self._call_later(KEPT_SECONDS, self._expire)


def _send(asker: Asker, value: Answer, error: BaseException | None) -> None:
    """Send an outcome to one asker."""
    if error is None:
        asker.set_result(value)
    else:
        asker.set_exception(error)
