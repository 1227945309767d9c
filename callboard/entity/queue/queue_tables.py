"""Inspection tables of the work queues that a node owns: their figures, and their dead jobs."""

from collections.abc import Mapping
from typing import Final

from callboard.entity.host import EntityHost
from callboard.entity.ownership import called
from callboard.entity.queue.queue_entity import QueueEntity
from callboard.entity.state.interface import EntityState, JobStatus
from callboard.kernel.access import Rights
from callboard.kernel.topology import Topology
from callboard.support.inspection_tables import ROW_LIMIT, Row
from callboard.support.keyed_name import QUEUE_PREFIX
from callboard.support.text import printable

#: Characters of a job's value in a row.
VALUE_LIMIT: Final = 2_000

#: Jobs read from the database at once.
_READ_LIMIT: Final = 1_000


class QueueTables:
    """The inspection tables of one node's work queues."""

    def __init__(self, hosts: Mapping[str, EntityHost]) -> None:
        """Show the queues of some hosts; `hosts` has those of the node, by type."""
        self._hosts = hosts

    def add_to(self, topology: Topology) -> None:
        """Add the tables to those of a node."""
        topology.add_table("queues", self._queues)
        topology.add_table("queue_dead", self._dead_jobs)

    def _queues(self, queue_filter: str, permits: Rights | None) -> list[Row]:
        """Return a row for each work queue that is active on this node, or for one of them."""
        rows = []
        for _, name, queue in self._active(queue_filter, permits):
            stats = queue.stats
            rows.append(
                {
                    "queue": name,
                    "ready": stats.ready,
                    "delayed": stats.delayed,
                    "taken": stats.taken,
                    "dead": stats.dead,
                    "waiting": stats.waiting,
                    "limit": queue.limit,
                    "attempts": queue.attempts,
                }
            )
        return rows

    async def _dead_jobs(self, queue_filter: str, permits: Rights | None) -> list[Row]:
        """Return a row for each dead job of a queue, or of all queues."""
        rows: list[Row] = []
        for host, name, _ in self._active(queue_filter, permits):
            last_number = 0
            while host.state is not None and len(rows) < ROW_LIMIT:
                place = JobStatus.DEAD, (0, last_number), _READ_LIMIT
                read = called(host.state, EntityState.jobs, host.type.name, name, *place)
                jobs = list(await read)
                rows += [
                    {
                        "queue": name,
                        "job": str(job.number),  # JavaScript and jq would round the number
                        "attempts": job.state.attempt,
                        "reason": job.state.reason,
                        "value": printable(job.body[:VALUE_LIMIT]),
                    }
                    for job in jobs
                ]
                if len(jobs) < _READ_LIMIT:
                    break
                last_number = jobs[-1].number
        return rows

    def _active(
        self, queue_filter: str, permits: Rights | None
    ) -> list[tuple[EntityHost, str, QueueEntity]]:
        """Return the active queues that a requester may inspect, with host and name."""
        return [
            (host, cell.key, cell.actor)
            for type_name, host in sorted(self._hosts.items())
            if type_name.startswith(QUEUE_PREFIX)
            and (permits is None or permits.permit("entities", type_name))
            for cell in list(host.cells.values())
            if isinstance(cell.actor, QueueEntity) and queue_filter in ("", cell.key)
        ]
