"""Label log records with the node, the actor and the trace that they come from.

A record factory looks these up when a record is created, so the cost is per log record and not
per message. Formats can use `%(node)s`, `%(actor)s` and `%(trace)s`.
"""

import logging
import sys
import threading
from datetime import UTC, datetime
from typing import Any, Final, Literal

from callboard.kernel.context import current_cell
from callboard.kernel.tracing import traceparent
from callboard.support.json_form import json_of
from callboard.support.redaction import redacted
from callboard.support.text import printable, safe_repr

#: The log format of `callboard node run`.
FORMAT: Final = (
    "%(asctime)s %(levelname)s [%(node)s %(actor)s%(in_trace)s] %(name)s: %(message)s"
)

#: Placeholder for a missing node, actor, trace or span.
NOTHING: Final = "-"

_THREAD_PREFIX: Final = "callboard-"  # threads that run a node's handlers


class _LabelledFactory:
    """Creates log records with the attributes `node`, `actor`, `trace` and `span`."""

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
    """Formats records without control characters.

    Records quote names and texts of other nodes and clients, which could contain terminal
    escape sequences. The further lines of a message are indented, so that none looks like
    a separate record.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # its name there
        """Format a record without its traceback."""
        vars(record).setdefault("in_trace", "")  # records that another factory created
        return super().formatMessage(record).replace("\n", "\n    ")

    def format(self, record: logging.LogRecord) -> str:
        """Format a record."""
        return printable(redacted(super().format(record)), allowed="\n\t")


class JsonFormatter(logging.Formatter):
    """Formats each record as a line of JSON for log collectors; ASCII only.

    Keys: time (UTC), level, logger, node, actor, message; trace_id and span_id within a trace;
    exception; and the keys of `extra`.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Format a record."""
        time = datetime.fromtimestamp(record.created, UTC)
        row = {
            "time": time.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
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
        extra = {key: value for key, value in vars(record).items() if key not in _KNOWN}
        return json_of(extra | row, ensure_ascii=True, default=str)


#: Attributes of every record; all others are from `extra`.
_KNOWN: Final = frozenset(
    {*vars(logging.makeLogRecord({})), "message", "asctime"}
    | {"node", "actor", "trace", "span", "in_trace"}
)

LogFormat = Literal["text", "json"]


def label_log_records() -> None:
    """Label every log record of this process with its origin. Idempotent.

    `node` is the node's name; `actor` is the class and the number of the actor whose handler
    logs; `trace` and `span` are the ids of the trace context of the message being handled. A
    missing value is "-". Records of libraries that the handler calls are labelled too.
    """
    factory = logging.getLogRecordFactory()
    if not isinstance(factory, _LabelledFactory):
        logging.setLogRecordFactory(_LabelledFactory(factory))


def set_up_logging(level: str = "warning", form: LogFormat = "text") -> None:
    """Write labelled records to standard error, unless the root logger already has handlers.

    Args:
        level: `debug`, `info`, `warning`, `error` or `critical`.
        form: `text`, or `json` for one JSON object in a line.

    Raises:
        ValueError: the level is unknown.
    """
    label_log_records()
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if form == "json" else PrintableFormatter(FORMAT))
    logging.basicConfig(handlers=[handler])
    logging.getLogger().setLevel(level.upper())
    if form == "json":
        _log_what_python_prints()


def _log_what_python_prints() -> None:
    """Log warnings and uncaught errors, which Python would print as plain text."""
    logging.captureWarnings(capture=True)
    log = logging.getLogger("python")

    def on_uncaught(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        if issubclass(kind, KeyboardInterrupt):
            return
        log.critical("the program ends with an uncaught error", exc_info=(kind, error, trace))

    def on_thread(args: threading.ExceptHookArgs) -> None:
        if args.exc_value is None or isinstance(args.exc_value, SystemExit):
            return
        name = "?" if args.thread is None else args.thread.name
        parts = args.exc_type, args.exc_value, args.exc_traceback
        log.error("the thread %s ended with an uncaught error", name, exc_info=parts)

    def on_unraisable(args: "sys.UnraisableHookArgs") -> None:
        label = args.err_msg or "an error cannot be raised in"
        parts = args.exc_type, args.exc_value, args.exc_traceback
        log.error("%s: %s", label, safe_repr(args.object), exc_info=parts)  # type: ignore[arg-type]

    sys.excepthook, threading.excepthook = on_uncaught, on_thread
    sys.unraisablehook = on_unraisable


def _labels(thread_name: str) -> tuple[str, str]:
    cell = current_cell.get()
    if cell is not None:
        actor_class = "ended" if cell.actor is None else type(cell.actor).__name__
        return cell.runtime.name, f"{actor_class}/{cell.number}"
    if thread_name.startswith(_THREAD_PREFIX):
        return thread_name.removeprefix(_THREAD_PREFIX), NOTHING
    return NOTHING, NOTHING
