"""`callboard queue …`: inspect work queues, and requeue or discard dead jobs."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from callboard.cli.cli_error import CliError, UsageError
from callboard.cli.options import command, flag, noun, option
from callboard.cli.work.cluster_options import Address, ClusterOptions

if TYPE_CHECKING:
    from callboard.entity.queue.work_queue import WorkQueue
    from callboard.kernel.reply import Future
    from callboard.kernel.tables import ClusterInspection

#: Name of these commands' own node.
NAME: Final = "callboard queue"

_FIGURES: Final = (
    *("node", "queue", "ready", "delayed", "taken", "dead", "waiting"),
    *("attempts", "limit"),
)
_JOBS: Final = ("job", "attempts", "reason", "value")

#: Most queues in one table.
_QUEUE_LIMIT: Final = 10_000

app = noun()

Queue = Annotated[str, typer.Argument(metavar="QUEUE", help="The name of the queue.")]
Jobs = Annotated[
    list[int] | None,
    typer.Argument(metavar="[JOB]...", help="Numbers of dead jobs, as shown by dead."),
]


@dataclass(frozen=True, kw_only=True)
class DeadOptions(ClusterOptions):
    """Number of listed jobs."""

    limit: int = option(100, "Most jobs to list.", min=1, max=10_000)


@dataclass(frozen=True, kw_only=True)
class DeadJobsOptions(ClusterOptions):
    """Selection of the dead jobs to change."""

    all: bool = flag("All dead jobs of the queue.", "--all")


@command(app, "ls")
def list_queues(address: Address, options: ClusterOptions) -> None:
    """List the work queues of all nodes, with the number of jobs by status.

    WAITING is the number of takers without a job, ATTEMPTS the number after which a job is
    dead. A queue is listed at the node that owns it.

    \b
    Examples:
      callboard queue ls basp://127.0.0.1:4222
      callboard queue ls basp://127.0.0.1:4222 --json | jq '.rows[] | select(.dead > 0)'
    """  # noqa: D301
    options.show_table(_queues(address, options), _FIGURES, "no node in reach owns a queue")


@command(app)
def stats(address: Address, queue: Queue, options: ClusterOptions) -> None:
    """Print the figures of one work queue.

    \b
    Examples:
      callboard queue stats basp://127.0.0.1:4222 mails
      callboard queue stats basp://127.0.0.1:4222 mails --json | jq .rows[0].ready
    """  # noqa: D301
    options.show_table(_check_queue(address, queue, options), _FIGURES, "")


@command(app)
def dead(address: Address, queue: Queue, options: DeadOptions) -> None:
    """List the dead jobs of a work queue: attempts, last reason, and value as JSON.

    A job is dead after too many attempts. It stays in the queue until `callboard queue requeue`
    or `callboard queue discard`.

    \b
    Examples:
      callboard queue dead basp://127.0.0.1:4222 mails
      callboard queue dead basp://127.0.0.1:4222 mails --json | jq -r '.rows[].reason'
    """  # noqa: D301
    from callboard.kernel.tables import ReadPart

    _check_queue(address, queue, options)
    question = ReadPart("queue_dead", queue, limit=options.limit)
    inspection = options.ask_table(address, question)
    options.show_table(inspection, _JOBS, f"{queue} has no dead jobs")


@command(app)
def requeue(
    address: Address, queue: Queue, options: DeadJobsOptions, jobs: Jobs = None
) -> None:
    """Make dead jobs of a work queue ready again; their attempts start at 1.

    \b
    Examples:
      callboard queue requeue basp://127.0.0.1:4222 mails 1099511627777
      callboard queue requeue basp://127.0.0.1:4222 mails --all --json
    """  # noqa: D301
    _change((address, queue), jobs, options, lambda owner, numbers: owner.requeue(*numbers))


@command(app)
def discard(
    address: Address, queue: Queue, options: DeadJobsOptions, jobs: Jobs = None
) -> None:
    """Delete dead jobs of a work queue.

    \b
    Examples:
      callboard queue discard basp://127.0.0.1:4222 mails 1099511627777
      callboard queue discard basp://127.0.0.1:4222 mails --all --json
    """  # noqa: D301
    _change((address, queue), jobs, options, lambda owner, numbers: owner.discard(*numbers))


def _queues(address: str, options: ClusterOptions, queue: str = "") -> "ClusterInspection":
    """Return the table of all queues, or of one."""
    from callboard.kernel.tables import ReadPart

    return options.ask_table(address, ReadPart("queues", queue, limit=_QUEUE_LIMIT))


def _check_queue(address: str, queue: str, options: ClusterOptions) -> "ClusterInspection":
    """Return the row of a queue.

    Raises:
        CliError: no node in reach owns the queue.
    """
    inspection = _queues(address, options, queue)
    if any(node.answer is not None and node.answer.rows for node in inspection.nodes):
        return inspection
    silent = [f"{node.name}: {node.error}" for node in inspection.nodes if node.error]
    reason = "; ".join([f"no node in reach owns a queue {queue!r}", *silent])
    raise CliError(why=reason, step=f"see: callboard queue ls {address}")


def _change(
    place: tuple[str, str],
    jobs: list[int] | None,
    options: DeadJobsOptions,
    change: "Callable[[WorkQueue, list[int]], Future[Any]]",
) -> None:
    """Change dead jobs of the queue `place[1]`, through the node at `place[0]`.

    Raises:
        UsageError: neither jobs nor `--all` were given, or both.
        CliError: no node in reach owns the queue, or a job is not dead.
    """
    address, queue = place
    if bool(jobs) == options.all:
        raise UsageError(why="which dead jobs is not clear", step="pass numbers, or --all")
    _check_queue(address, queue, options)
    with options.open_node(NAME) as node:
        node.connect(address, options.timeout)
        count = change(node.queue(queue), jobs or []).result()
    missing = len(set(jobs or ())) - count if jobs else 0
    options.say({"queue": queue, "changed": count}, f"{queue}: {count:,} dead jobs changed")
    if missing:
        reason = f"{missing:,} of the given jobs of {queue} are not dead"
        raise CliError(why=reason, step=f"see: callboard queue dead {address} {queue}")
