"""Asks with retries: an unanswered message is sent again, but handled only once."""

from collections.abc import Callable
from random import Random
from typing import Any, Final, Protocol

from callboard.actors.asking.overdue import UNLIMITED_SECONDS
from callboard.actors.envelope import Envelope, TraceContext
from callboard.actors.errors import (
    AskTimeout,
    CallboardError,
    MailboxFull,
    NodeUnreachable,
)
from callboard.actors.future import AskList, Future
from callboard.actors.values import Message
from callboard.actors.waits.shutdown import Phase, Shutdown
from callboard.arguments import count as checked_count
from callboard.arguments import period as checked_period
from callboard.backoff import JITTER, Backoff
from callboard.support.dataclass import dataclass
from callboard.support.seconds import LARGEST

#: Seconds before the first repeat, and the limit for later pauses.
FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 10.0

_KEY_SIZE: Final = 16


class RetryHost(Protocol):
    """The interface of the runtime for asks with retries."""

    #: Returns the monotonic time in seconds.
    now: Callable[[], float]
    #: Calls a function on the node's thread after a delay: (seconds, callback, *args).
    call_later: Callable[..., Any]
    #: The node's source of randomness.
    random: Random
    #: Recent asks, whose deadlines the runner watches.
    fresh_asks: AskList
    #: The shutdown sequence of the node.
    shutdown: Shutdown

    def set_deadline(
        self, future: Future, timeout: float, limit: float | None = None, /
    ) -> bool:
        """Fail an ask after `timeout` seconds, or at `limit` if that is clearly earlier."""


class RetryTarget(Protocol):
    """The interface of the target for asks with retries."""

    def keeps_answers(self) -> bool:
        """Return whether the target answers a repeated ask from its reply cache."""


@dataclass(frozen=True, slots=True)
class Retries:
    """The retry policy of an ask.

    Attributes:
        count: maximum number of repeats.
        pause: seconds before the first repeat.
        timeout: seconds of each attempt; None for no limit.
        limit: deadline of the whole, inherited from the ask that is being handled.
    """

    count: int
    pause: float
    timeout: float | None
    limit: float | None

    def __post_init__(self) -> None:
        checked_count(self.count, "retries")
        object.__setattr__(self, "pause", checked_period(self.pause, "backoff"))

    def ends(self, now: float) -> float | None:
        """Return the latest time at which the last attempt can end.

        None if there is no limit.
        """
        if self.timeout is None:
            return self.limit
        backoff = Backoff(self.pause, LONGEST_PAUSE)
        pauses = sum(backoff.next_pause(None) for _ in range(min(self.count, 10_000)))
        end = now + (min(self.count, LARGEST) + 1) * self.timeout + pauses * (1.0 + JITTER)
        return end if self.limit is None else min(end, self.limit)


class AskAttempt(Future):
    """One attempt of an ask with retries.

    When it times out, the actor is not asked to stop working on the message.
    """

    __slots__ = ()

    def expire(self) -> None:
        """Fail with `AskTimeout`, but leave giving up to the `RetriedAsk`."""
        self.set_exception(AskTimeout(f"{self.asked} did not answer within {self.timeout:g} s"))


#: Sends a message on behalf of an asker.
Post = Callable[[Any, Future], object]


class RetriedAsk(Future):
    """The future of an ask with retries."""

    def __init__(
        self,
        ref: Any,
        message: Message,
        trace: TraceContext | None,
        retries: Retries,
        post: Post,
        chain: tuple[str, ...] = (),
    ) -> None:
        """Send the message for the first time.

        Args:
            ref: the ref of the actor.
            message: the message.
            trace: the trace context of the message.
            retries: the retry policy.
            post: sends the message: (message, asker).
            chain: the entities that wait for the answer.
        """
        super().__init__(ref)
        self._home: RetryHost = ref.home
        self._retries = retries
        self._left = retries.count
        self._backoff = Backoff(retries.pause, LONGEST_PAUSE)
        self._post = post
        #: All attempts: the actor may be working on any of them.
        self._attempts: list[AskAttempt] = []
        now = self._home.now()
        key, end = self._home.random.randbytes(_KEY_SIZE), retries.ends(now)
        if end is None:  # without a deadline, a remote node would apply the default timeout
            end = now + UNLIMITED_SECONDS
        self._message = Envelope(message, trace, end, key=key, chain=chain)
        self._target: RetryTarget = ref.target
        # Requests the abilities of a remote node early, so that they are known in time.
        self._target.keeps_answers()
        self._try()
        if retries.timeout is None:
            # Without a deadline, only the end of the node can fail it.
            self._home.shutdown.guard(self)

    def give_up(self) -> None:
        """Cancel the current attempt, and the work that earlier ones have started."""
        for attempt in self._attempts:
            if not attempt.cancel():
                attempt.give_up()

    def _try(self) -> None:
        """Send the message in a new attempt."""
        attempt = AskAttempt(self.asked)
        self._attempts.append(attempt)
        if self._retries.timeout is not None:
            self._home.set_deadline(attempt, self._retries.timeout, self._retries.limit)
        self._post(self._message, attempt)
        attempt.on_done(self._answered)

    def _again(self) -> None:
        """Send the message again. Runs on the node's thread."""
        if not self.is_done:
            try:
                self._try()
            except CallboardError as error:
                self.set_exception(error)

    def _answered(self, attempt: Future) -> None:
        """Use the outcome of an attempt, or schedule the next attempt."""
        if self.is_done or attempt.cancelled():
            return
        error = attempt.exception()
        if error is None:
            self.set_result(attempt.result())
            return
        pause = self._backoff.next_pause(self._home.random)
        limit = self._retries.limit
        is_late = limit is not None and self._home.now() + pause >= limit
        shutdown = self._home.shutdown
        is_late = is_late or shutdown.phase is Phase.ENDED
        if self._left > 0 and not is_late and self._may_repeat(attempt, error):
            self._left -= 1
            shutdown.retry_in(pause, self._again)
        else:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """Fail with the error of the last attempt."""
        count = 1 + self._retries.count - self._left
        if isinstance(error, AskTimeout) and count > 1:
            error = AskTimeout(f"{error}; sent {count} times")
        if self.set_exception(error) and isinstance(error, AskTimeout):
            self.give_up()

    def _may_repeat(self, attempt: Future, error: BaseException) -> bool:
        """Return whether the message is handled at most once even if it is sent again."""
        if isinstance(error, MailboxFull):
            return True  # no handler has received the message
        if not isinstance(error, AskTimeout | NodeUnreachable):
            return False
        return self._target.keeps_answers() or not attempt.sent_id
