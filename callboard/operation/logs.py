"""Which node, which actor and which trace a log record comes from.

A record factory asks for them while the record is made, so it costs what is logged and
nothing for each message. Formats may then use `%(node)s`, `%(actor)s` and `%(trace)s`.
"""

import logging
from datetime import UTC, datetime
from typing import Any, Final, Literal

from callboard.kernel.context import current_cell
from callboard.kernel.tracing import traceparent
from callboard.support.json_form import json_of
from callboard.support.redaction import redacted
from callboard.support.text import printable

#: What `callboard node run` writes.
FORMAT: Final = (
    "%(asctime)s %(levelname)s [%(node)s %(actor)s%(in_trace)s] %(name)s: %(message)s"
)

#: What stands for no node or no actor.
NOTHING: Final = "-"

_THREAD_PREFIX: Final = "callboard-"  # of the threads that run a node's handlers


class _LabelledFactory:
    """Makes log records with attributes that say where they come from."""

    def __init__(self, make: Any) -> None:
        self._make = make

    def __call__(self, *args: Any, **kwargs: Any) -> logging.LogRecord:
        record: logging.LogRecord = self._make(*args, **kwargs)
        record.node, record.actor = _labels(record.threadName or "")
        parent = traceparent()
        record.trace, record.span = parent.split("-")[1:3] if parent else (NOTHING, NOTHING)
        record.in_trace = f" trace={parent.split('-')[1]}" if parent else ""
        return record


class PrintableFormatter(logging.Formatter):
    """Writes records without characters that a terminal would obey.

    Names and texts of other nodes and clients stand in them. The lines of a message that has
    several are indented, so that none looks like a record.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # its name there
        """Write a record without its traceback."""
        vars(record).setdefault("in_trace", "")  # of records that were made elsewhere
        return super().formatMessage(record).replace("\n", "\n    ")

    def format(self, record: logging.LogRecord) -> str:
        """Write a record."""
        return printable(redacted(super().format(record)), kept="\n\t")


class JsonFormatter(logging.Formatter):
    """Writes each record as a line of JSON, for what collects logs; ASCII only.

    Its keys: time (UTC), level, logger, node, actor, message; trace_id and span_id in a trace;
    exception; and whatever was given as `extra`.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Write a record."""
        at = datetime.fromtimestamp(record.created, UTC)
        row = {
            "time": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "node": getattr(record, "node", NOTHING),
            "actor": getattr(record, "actor", NOTHING),
            "message": redacted(record.getMessage()),
        }
        if getattr(record, "trace", NOTHING) != NOTHING:
            row |= {"trace_id": record.__dict__["trace"], "span_id": record.__dict__["span"]}
        if record.exc_info:
            row["exception"] = redacted(self.formatException(record.exc_info))
        more = {key: value for key, value in vars(record).items() if key not in _KNOWN}
        return json_of(more | row, ensure_ascii=True, default=str)


#: Attributes that every record has; others were given as `extra`.
_KNOWN: Final = frozenset(
    {*vars(logging.makeLogRecord({})), "message", "asctime"}
    | {"node", "actor", "trace", "span", "in_trace"}
)

LogFormat = Literal["text", "json"]


def label_log_records() -> None:
    """Give every log record of this process attributes that say where it is from. Idempotent.

    `node` is the node's name, `actor` the class and the number of the actor whose handler
    logs, `trace` and `span` the ids of the trace context of the message that it handles; each
    is "-" where there is none. Libraries that the handler calls are labelled too.
    """
    factory = logging.getLogRecordFactory()
    if not isinstance(factory, _LabelledFactory):
        logging.setLogRecordFactory(_LabelledFactory(factory))


def set_up_logging(level: str = "warning", form: LogFormat = "text") -> None:
    """Write labelled records to standard error; the root logger's handlers stay if it has some.

    Args:
        level: `debug`, `info`, `warning`, `error` or `critical`.
        form: `text`, or `json` for a line of JSON each.

    Raises:
        ValueError: the level is another one.
    """
    label_log_records()
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if form == "json" else PrintableFormatter(FORMAT))
    logging.basicConfig(handlers=[handler])
    logging.getLogger().setLevel(level.upper())


def _labels(thread_name: str) -> tuple[str, str]:
    cell = current_cell.get()
    if cell is not None:
        actor_class = "ended" if cell.actor is None else type(cell.actor).__name__
        return cell.runtime.name, f"{actor_class}/{cell.number}"
    if thread_name.startswith(_THREAD_PREFIX):
        return thread_name.removeprefix(_THREAD_PREFIX), NOTHING
    return NOTHING, NOTHING
