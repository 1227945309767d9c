"""Append-only logs: segments, absolute offsets, cursors; in memory and on disk.

Imports nothing else of callboard; see `docs/log.md`.
"""

from callboard.commitlog.arrow import arrow_schema
from callboard.commitlog.errors import (
    ExtraMissing,
    FieldConflict,
    InvalidRecord,
    LogClosed,
    LogCorrupt,
    LogError,
    LogFailed,
    LogInUse,
    LogLocked,
    LogReplaced,
    OtherEpoch,
    OtherLog,
    PositionAhead,
    PositionRefused,
    ProducerError,
    ProducerFenced,
    ProducerForgotten,
    ReceiptUnknown,
    WrongNumber,
)
from callboard.commitlog.fields.column_files import sealed_segments, write_columns
from callboard.commitlog.fields.declared import DeclaredField
from callboard.commitlog.following.follower import Follower
from callboard.commitlog.following.named import NamedReader
from callboard.commitlog.identity.position import LogIdentity, Position, parse_position
from callboard.commitlog.log import CommitLog
from callboard.commitlog.objects.archive import Archive
from callboard.commitlog.producing.producer import Producer
from callboard.commitlog.reader import LogReader
from callboard.commitlog.record import Cursor, Record, Run
from callboard.commitlog.retention import Retention
from callboard.commitlog.sealed import SealedSegment

__all__ = [
    "Archive",
    "CommitLog",
    "Cursor",
    "DeclaredField",
    "ExtraMissing",
    "FieldConflict",
    "Follower",
    "InvalidRecord",
    "LogClosed",
    "LogCorrupt",
    "LogError",
    "LogFailed",
    "LogIdentity",
    "LogInUse",
    "LogReplaced",
    "LogLocked",
    "LogReader",
    "NamedReader",
    "OtherEpoch",
    "OtherLog",
    "Position",
    "PositionAhead",
    "PositionRefused",
    "Producer",
    "ProducerError",
    "ProducerFenced",
    "ProducerForgotten",
    "ReceiptUnknown",
    "Record",
    "Retention",
    "Run",
    "SealedSegment",
    "WrongNumber",
    "arrow_schema",
    "parse_position",
    "sealed_segments",
    "write_columns",
]
