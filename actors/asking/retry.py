"""An ask that is sent again when no answer comes, and handled once all the same."""

from collections.abc import Callable
from random import Random
from typing import Any, Final, Protocol

from callboard.actors.asking.overdue import UNLIMITED_SECONDS
from callboard.actors.backoff import JITTER, Backoff
from callboard.actors.envelope import Envelope, TraceContext
from callboard.actors.errors import (
    AskTimeout,
    CallboardError,
    MailboxFull,
    NodeUnreachable,
)
from callboard.actors.future import AskList, Future
from callboard.actors.seconds import count as checked_count
from callboard.actors.seconds import period as checked_period
from callboard.actors.waits.shutdown import Phase, Shutdown
from callboard.support.dataclass import dataclass
from callboard.support.seconds import LARGEST

#: Seconds before the first repeat, and before a later one at most.
FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 10.0

_KEY_SIZE: Final = 16


class RetryHost(Protocol):
    """What repeated asks use of the runtime."""

    #: Returns the monotonic time in seconds.
    now: Callable[[], float]
    #: Calls on the node's thread in so many seconds: (delay, callback, *args).
    call_later: Callable[..., Any]
    #: The node's source of randomness.
    random: Random
    #: The asks that were made a moment ago, whose deadlines have to be watched.
    fresh_asks: AskList
    #: What ends with the node.
    shutdown: Shutdown

    def set_deadline(
        self, future: Future[Any], timeout: float, limit: float | None = None, /
    ) -> bool:
        """Let an ask fail after `timeout` seconds, or at `limit` if that is clearly earlier."""


class RetryTarget(Protocol):
    """Where repeated asks go."""

    def keeps_answers(self) -> bool:
        """Return whether an ask with a key may come again, and is answered as before."""


@dataclass(frozen=True, slots=True)
class Retries:
    """How an ask is repeated.

    Attributes:
        count: how often at most.
        pause: seconds before the first repeat.
        timeout: seconds of each attempt; None for no limit.
        limit: when the whole has to be over, as the ask that is handled has.
    """

    count: int
    pause: float
    timeout: float | None
    limit: float | None

    def __post_init__(self) -> None:
        checked_count(self.count, "retries")
        object.__setattr__(self, "pause", checked_period(self.pause, "backoff"))

    def ends(self, now: float) -> float | None:
        """Return when the last attempt is over at the latest; None if never."""
        if self.timeout is None:
            return self.limit
        backoff = Backoff(self.pause, LONGEST_PAUSE)
        pauses = sum(backoff.next_pause(None) for _ in range(min(self.count, 10_000)))
        end = now + (min(self.count, LARGEST) + 1) * self.timeout + pauses * (1.0 + JITTER)
        return end if self.limit is None else min(end, self.limit)


class AskAttempt(Future[Any]):
    """One message of an ask that may be repeated: when its time is over, the work goes on."""

    __slots__ = ()

    def expire(self) -> None:
        """Fail with `AskTimeout`, and leave it to the whole ask to give up."""
        self.set_exception(AskTimeout(f"{self.asked} did not answer within {self.timeout:g} s"))


#: Sends a message in the name of an asker.
Post = Callable[[Any, Future[Any]], object]


class RetriedAsk(Future[Any]):
    """The future of an ask that is repeated."""

    def __init__(
        self,
        asked: Any,
        message: Any,
        trace: TraceContext | None,
        retries: Retries,
        post: Post,
        chain: tuple[str, ...] = (),
    ) -> None:
        """Ask for the first time.

        Args:
            asked: the ref.
            message: to be sent.
            trace: what travels with it.
            retries: how often, and when.
            post: sends it: (message, asker).
            chain: the entities that wait for the answer.
        """
        super().__init__(asked)
        self._home: RetryHost = asked.home
        self._retries = retries
        self._left = retries.count
        self._backoff = Backoff(retries.pause, LONGEST_PAUSE)
        self._post = post
        #: All of them: any may be the one that is worked on.
        self._attempts: list[AskAttempt] = []
        now = self._home.now()
        key, end = self._home.random.randbytes(_KEY_SIZE), retries.ends(now)
        if end is None:  # else its node would take it for one with the default
            end = now + UNLIMITED_SECONDS
        self._message = Envelope(message, trace, end, key=key, chain=chain)
        self._target: RetryTarget = asked.target
        self._target.keeps_answers()  # so that its node has said it when it matters
        self._try()
        if retries.timeout is None:
            self._home.shutdown.guard(self)  # no deadline ends it with the node

    def give_up(self) -> None:
        """Give up the attempt that is under way, and the work that an earlier one began."""
        for attempt in self._attempts:
            if not attempt.cancel():
                attempt.give_up()

    def _try(self) -> None:
        """Send the message."""
        attempt = AskAttempt(self.asked)
        self._attempts.append(attempt)
        if self._retries.timeout is not None:
            self._home.set_deadline(attempt, self._retries.timeout, self._retries.limit)
        self._post(self._message, attempt)
        attempt.on_done(self._answered)

    def _again(self) -> None:
        """Send the message once more; on the node's thread."""
        if not self.is_done:
            try:
                self._try()
            except CallboardError as error:
                self.set_exception(error)

    def _answered(self, attempt: Future[Any]) -> None:
        """Take the outcome of an attempt: it is that of the ask, or there is another one."""
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
        """Fail as the last attempt did."""
        count = 1 + self._retries.count - self._left
        if isinstance(error, AskTimeout) and count > 1:
            error = AskTimeout(f"{error}, nor did it when asked {count} times")
        if self.set_exception(error) and isinstance(error, AskTimeout):
            self.give_up()

    def _may_repeat(self, attempt: Future[Any], error: BaseException) -> bool:
        """Return whether the message may be sent again, and is still handled once at most."""
        if isinstance(error, MailboxFull):
            return True  # no handler has seen it
        if not isinstance(error, AskTimeout | NodeUnreachable):
            return False
        return self._target.keeps_answers() or not hasattr(attempt, "message_id")
