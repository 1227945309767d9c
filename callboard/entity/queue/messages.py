"""What nodes ask the owner of a work queue."""

from typing import Final

from callboard.entity.errors import JobLost, QueueFull
from callboard.kernel.actors import errors_travel, frozen_message

errors_travel(JobLost, QueueFull)


#: What became of a change of a job that a taker has: it took place; there is no such job, so
#: that an earlier attempt may have; or another taker has it.
CHANGED: Final = 1
GONE: Final = 0
ANOTHERS: Final = 2


@frozen_message("callboard.ChangeJobs")
class ChangeJobs:
    """To the owner of a queue: put jobs, and take away those that are done."""

    #: Values as JSON, each with the seconds until it is ready.
    put: tuple[tuple[str, float], ...] = ()
    #: Numbers of jobs, each with the token of its taking.
    done: tuple[tuple[int, str], ...] = ()


@frozen_message("callboard.JobsChanged")
class JobsChanged:
    """The answer to `ChangeJobs`."""

    #: The numbers of the jobs that were put: there was no room for those behind.
    put: tuple[int, ...]
    #: What became of each job that was done: `CHANGED`, `GONE` or `ANOTHERS`.
    done: tuple[int, ...]


@frozen_message("callboard.TakeJob")
class TakeJob:
    """To the owner of a queue: give me a job, as soon as there is one."""

    token: str
    #: Seconds that it is the taker's.
    visible: float


@frozen_message("callboard.TakenJob")
class TakenJob:
    """The answer to `TakeJob`."""

    number: int
    attempt: int
    body: str


@frozen_message("callboard.WithdrawTake")
class WithdrawTake:
    """To the owner of a queue: nobody waits for a job any more."""

    token: str


@frozen_message("callboard.GiveBackJob")
class GiveBackJob:
    """To the owner of a queue: another taker has to do a job.

    Answered as `JobsChanged.done` is.
    """

    number: int
    token: str
    delay: float
    reason: str


@frozen_message("callboard.RefuseJob")
class RefuseJob:
    """To the owner of a queue: the taker's program cannot read a job.

    The job waits for a taker of another node. Answered as `JobsChanged.done` is.
    """

    number: int
    token: str
    #: Names of types that the program lacks; empty if only this job cannot be read.
    missing: tuple[str, ...]
    reason: str


@frozen_message("callboard.ExtendJob")
class ExtendJob:
    """To the owner of a queue: a job takes longer. Answered as `JobsChanged.done` is."""

    number: int
    token: str
    visible: float


@frozen_message("callboard.AskDeadJobs")
class AskDeadJobs:
    """To the owner of a queue: which jobs are dead? Answered with `DeadJobs`."""

    after: int
    limit: int


@frozen_message("callboard.DeadJobs")
class DeadJobs:
    """Jobs that were given back too often: number, attempts, reason and value as JSON."""

    jobs: tuple[tuple[int, int, str, str], ...]


@frozen_message("callboard.ReviveJobs")
class ReviveJobs:
    """To the owner of a queue: let dead jobs be ready again, or take them away.

    Answered with how many.
    """

    #: None for all of them.
    numbers: tuple[int, ...] | None
    is_kept: bool = True


@frozen_message("callboard.AskQueueStats")
class AskQueueStats:
    """To the owner of a queue: how many jobs are there?"""


@frozen_message("callboard.QueueStats")
class QueueStats:
    """How many jobs a work queue has, and how many takers wait."""

    #: Jobs that the next takers get.
    ready: int
    #: Jobs that are ready at a later time.
    delayed: int
    #: Jobs that takers have.
    taken: int
    #: Jobs that were given back too often.
    dead: int
    #: Takers that wait for a job.
    waiting: int
