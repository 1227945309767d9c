"""Answers that are kept by key, so that an ask that comes again is not handled again.

An ask with retries travels with a key. The first of its messages that an actor comes to is
handled; a further one joins it while it is under way, and gets the same answer afterwards. A
key is one of the node that asks: no other can guess its way to an answer.
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

#: Seconds that an answer is kept.
KEPT_SECONDS: Final = 60.0

#: Answers kept of one actor; the oldest go first.
KEPT_BY_ACTOR: Final = 1_000

#: Bytes of all that a node keeps, as `size_of` and `KEPT_OVERHEAD` estimate them.
KEPT_BYTES: Final = 64 * 1024 * 1024
KEPT_OVERHEAD: Final = 512

#: Repeats that wait for one answer; an asker waits for its latest alone.
JOINED_LIMIT: Final = 100

#: The message was not handled, or not to its end: a repeat may be. Outcomes of rooms above say
#: so by an attribute `nothing_happened`.
_NOT_KEPT: Final = (ActorDown, AskTimeout, MailboxFull)

#: An actor's number, the node that asks (empty for this one), and its key.
Place = tuple[int, bytes, bytes]


class CachedReply(Reply):
    """The asker in the name of all that ask with one key."""

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
        #: Bytes, as estimated.
        self.size = 0

    def join(self, asker: Asker) -> None:
        """Let another message of the same ask have the answer."""
        with self._keeper.lock:
            outcome = self._outcome
            if outcome is None:
                self._askers.append(asker)
        if outcome is None:
            asker.mark_handled()
        else:
            _give(asker, *outcome)

    @property
    def node(self) -> bytes:
        """The node that asks; empty for this one."""
        return self.place[1]

    def is_asked_by(self, is_it: Callable[[Any], bool]) -> bool:
        """Return whether one of the askers is such a one."""
        return any(is_it(asker) for asker in list(self._askers))

    def set_result(self, value: Any) -> bool:
        """Keep the answer and give it to all that wait."""
        return self._settle(value, None)

    def set_exception(self, error: BaseException) -> bool:
        """Give the error to all that wait; keep it if the message was handled."""
        return self._settle(None, error)

    def mark_handled(self) -> None:
        """The message was handled; the answer may come later."""
        for asker in list(self._askers):
            asker.mark_handled()

    def reference(self, runtime: Home) -> ActorRef[Any]:
        """Return a one-shot address that answers the ask."""
        return runtime.reply_ref(self)

    def _settle(self, value: Any, error: BaseException | None) -> bool:
        """Take the outcome; False when there was one."""
        outcome = value if error is None else error
        # What may run code of users is done before the lock is taken.
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
        del dropped  # without the lock: these answers are objects of users
        for asker in askers:
            _give(asker, value, error)
        return True


class ReplyCache:
    """The answers that one node keeps: for a time, so many of each actor, so many bytes."""

    def __init__(self, now: Callable[[], float], call_later: Callable[..., object]) -> None:
        self._now = now
        self._call_later = call_later
        #: Guards the tables, and what becomes of each answer.
        self.lock = locks.lock("kept answers", 750)
        self._answers: dict[Place, CachedReply] = {}
        #: Those that are there, the oldest first: when they expire, and by actor.
        self._due: OrderedDict[CachedReply, float] = OrderedDict()
        self._of: dict[int, OrderedDict[CachedReply, None]] = {}
        #: Bytes of those.
        self.held = 0
        self._is_timed = False

    def __len__(self) -> int:
        """Count the answers that are kept or under way."""
        return len(self._answers)

    def admit(
        self, number: int, key: bytes, asker: Asker, deadline: float | None = None
    ) -> CachedReply | None:
        """Return in whose name to handle a message; None if it is a repeat, which is answered.

        Args:
            number: of the actor.
            key: of the ask.
            asker: who sent the message.
            deadline: when its time is over.
        """
        place = number, asker.node, key
        with self.lock:
            found = self._answers.get(place)
            if found is None:
                made = self._answers[place] = CachedReply(self, place, asker, deadline)
                if deadline is not None and not self._is_timed:
                    self._is_timed = True
                    self._call_later(KEPT_SECONDS, self._expire)
                return made
        found.join(asker)
        return None

    def repeats(self, number: int, key: bytes, asker: Asker) -> bool:
        """Answer a message to an actor that has ended, if the answer is there."""
        found = self._answers.get((number, asker.node, key))
        if found is None or not found.is_done:
            return False
        found.join(asker)
        return True

    def settled(self, answer: CachedReply, *, is_kept: bool) -> list[CachedReply]:
        """Keep an answer from now on, or forget that it was asked for; needs the lock.

        Returns:
            The older answers that were dropped for it, to be let go of without the lock.
        """
        if not is_kept:
            self._answers.pop(answer.place, None)
            return []
        dropped: list[CachedReply] = []
        of = self._of.setdefault(answer.place[0], OrderedDict())
        of[answer] = None
        self._due[answer] = self._now() + KEPT_SECONDS
        self.held += answer.size
        if len(of) > KEPT_BY_ACTOR:
            dropped.append(self._drop(next(iter(of))))
        while self.held > KEPT_BYTES:
            dropped.append(self._drop(next(iter(self._due))))
        if not self._is_timed:
            self._is_timed = True
            self._call_later(KEPT_SECONDS, self._expire)
        return dropped

    def _drop(self, answer: CachedReply) -> CachedReply:
        """Forget an answer, and return it; needs the lock."""
        self._answers.pop(answer.place, None)
        if self._due.pop(answer, None) is None:
            return answer  # a call inside this one has dropped it
        self.held -= answer.size
        of = self._of.get(answer.place[0])
        if of is not None:
            of.pop(answer, None)
            if not of:
                self._of.pop(answer.place[0], None)
        return answer

    def _expire(self) -> None:
        """Forget what is old, and come again when the next one is."""
        now, dropped = self._now(), list[CachedReply]()
        with self.lock:
            while self._due and next(iter(self._due.values())) <= now:
                dropped.append(self._drop(next(iter(self._due))))
            # Under way, and not answered in the time of the last attempt: no repeat will come.
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


def _give(asker: Asker, value: Any, error: BaseException | None) -> None:
    """Give an outcome to one that waits."""
    if error is None:
        asker.set_result(value)
    else:
        asker.set_exception(error)
