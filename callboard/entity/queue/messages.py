"""Messages to the owner of a work queue, and its answers."""

from typing import Final

from callboard.entity.errors import JobLost, QueueFull
from callboard.kernel.actors import errors_travel, frozen_message

errors_travel(JobLost, QueueFull)


#: Outcomes of a change of a taken job: it was changed; there is no such job, so an earlier
#: attempt may have changed it; or another taker has it.
CHANGED: Final = 1
GONE: Final = 0
ANOTHERS: Final = 2


@frozen_message("callboard.ChangeJobs")
class ChangeJobs:
    """To the owner of a queue: add jobs, and remove finished ones."""

    #: Values as JSON, each with the seconds until it is ready.
    put: tuple[tuple[str, float], ...] = ()
    #: Numbers of jobs, each with the token of its assignment.
    done: tuple[tuple[int, str], ...] = ()


@frozen_message("callboard.JobsChanged")
class JobsChanged:
    """Answer to `ChangeJobs`."""

    #: The numbers of the added jobs; the queue had no room for the rest.
    put: tuple[int, ...]
    #: The outcome for each finished job: `CHANGED`, `GONE` or `ANOTHERS`.
    done: tuple[int, ...]


@frozen_message("callboard.TakeJob")
class TakeJob:
    """To the owner of a queue: request for a job, answered when there is one."""

    token: str
    #: Seconds that the job is reserved for the taker.
    visible: float


@frozen_message("callboard.TakenJob")
class TakenJob:
    """Answer to `TakeJob`."""

    number: int
    attempt: int
    body: str


@frozen_message("callboard.WithdrawTake")
class WithdrawTake:
    """A report to the owner of a queue that a taker no longer waits for a job."""

    token: str


@frozen_message("callboard.GiveBackJob")
class GiveBackJob:
    """A request to the owner of a queue to return a job for another taker.

    Answered with one outcome, as in `JobsChanged.done`.
    """

    number: int
    token: str
    delay: float
    reason: str


@frozen_message("callboard.RefuseJob")
class RefuseJob:
    """A report to the owner of a queue that the taker's program cannot read a job.

    The job waits for a taker of another node. Answered with one outcome, as in
    `JobsChanged.done`.
    """

    number: int
    token: str
    #: Types that the program lacks; empty if only this job cannot be read.
    missing: tuple[str, ...]
    reason: str


@frozen_message("callboard.ExtendJob")
class ExtendJob:
    """To the owner of a queue: a job takes longer. Answered as `GiveBackJob` is."""

    number: int
    token: str
    visible: float


@frozen_message("callboard.AskDeadJobs")
class AskDeadJobs:
    """To the owner of a queue: request for dead jobs. Answered with `DeadJobs`."""

    after: int
    limit: int


@frozen_message("callboard.DeadJobs")
class DeadJobs:
    """Jobs after too many attempts: number, attempts, reason and value as JSON."""

    jobs: tuple[tuple[int, int, str, str], ...]


@frozen_message("callboard.ReviveJobs")
class ReviveJobs:
    """To the owner of a queue: make dead jobs ready again, or delete them.

    Answered with their number.
    """

    #: None for all.
    numbers: tuple[int, ...] | None
    is_kept: bool = True


@frozen_message("callboard.AskQueueStats")
class AskQueueStats:
    """To the owner of a queue: request for its statistics."""


@frozen_message("callboard.QueueStats")
class QueueStats:
    """Number of jobs of a work queue by status, and of waiting takers."""

    #: Jobs for the next takers.
    ready: int
    #: Jobs that become ready later.
    delayed: int
    #: Jobs that takers have.
    taken: int
    #: Jobs after too many attempts.
    dead: int
    #: Takers that wait for a job.
    waiting: int
