"""Positions of streams in Spark's checkpoints, and of the ranges that tasks read.

A checkpoint has `{"offset": n, "log": id, "epoch": m}`, or the offset alone if callboard 0.1
wrote it. Every position is compared with the log before a record is read: on the driver, since
the path of the log or the folder at this path may have changed, and in tasks, since another
host may have another folder at the same path.
"""

from collections.abc import Mapping
from typing import Any, Final

from callboard.commitlog import LogReader, Position, PositionAhead
from callboard.commitlog.folder import LAST_OFFSET
from callboard.commitlog.identity.identity import read_identity
from callboard.commitlog.identity.position import PositionOwner, position_of, resume
from callboard.commitlog.reader import open_folder
from callboard.pipeline.errors import InvalidSetting
from callboard.pipeline.spark.options import SourceOptions

#: How a query continues on purpose.
_WAY: Final = 'option("acceptLog", "{0}"), or --accept-log {0}'


class StreamPositions:
    """The positions of one stream in its log."""

    def __init__(self, log: LogReader, options: SourceOptions) -> None:
        """Start without positions."""
        self._log = log
        self._options = options
        #: Stored positions that were adopted or accepted, until Spark stores the new ones.
        self._resumed: dict[Position, Position] = {}

    def resume(self, stored: Mapping[str, Any]) -> Position:
        """Return the position at which to continue.

        A log that ends before the position is not refused here: `failOnDataLoss` decides.

        Raises:
            InvalidSetting: the checkpoint has no position.
            OtherLog: the position belongs to another log.
            OtherEpoch: the records before the position were lost and replaced.
        """
        try:
            position = position_of(stored)
        except ValueError as error:
            msg = f"the checkpoint is not one of this source: {error}; use a new checkpoint"
            raise InvalidSetting(msg) from None
        original = position
        position = self._resumed.get(position, position)
        try:
            resumed = self._log.resume(
                position, accept=self._options.accept_log, name="the checkpoint", way=_WAY
            )
        except PositionAhead:
            resumed = position
        if resumed != position:
            self._resumed = {original: resumed, **dict([*self._resumed.items()][:8])}
        return resumed

    def fields_at(self, offset: int) -> dict[str, Any]:
        """Return the position at an offset, for the checkpoint."""
        return self._log.position(offset).as_fields()


def check_task(options: SourceOptions, position: Position) -> None:
    """Check, in a task, that this host has the log that the driver has seen.

    Raises:
        OtherLog: the path leads to another log here.
        OtherEpoch: the log has other records here.
    """
    if position.log:
        identity = read_identity(open_folder(options.path, **options.access))
        owner = PositionOwner(
            "the query's driver", options.path, "use a path that is the same log on all hosts"
        )
        resume(position, identity, LAST_OFFSET, owner)
