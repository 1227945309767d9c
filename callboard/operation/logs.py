"""Which node and which actor a log record comes from.

A record factory asks for both while the record is made, so it costs what is logged and
nothing for each message. Formats may then use `%(node)s` and `%(actor)s`.
"""

import logging
from typing import Any, Final

from callboard.actors.reference import current_cell
from callboard.text import printable

#: What `callboard node run` writes.
FORMAT: Final = "%(asctime)s %(levelname)s [%(node)s %(actor)s] %(name)s: %(message)s"

#: What stands for no node or no actor.
NOTHING: Final = "-"

_THREAD_PREFIX: Final = "callboard-"  # of the threads that run a node's handlers


class _LabelledFactory:
    """Makes log records with the attributes `node` and `actor`."""

    def __init__(self, make: Any) -> None:
        self._make = make

    def __call__(self, *args: Any, **kwargs: Any) -> logging.LogRecord:
        record: logging.LogRecord = self._make(*args, **kwargs)
        record.node, record.actor = _labels(record.threadName or "")
        return record


class PrintableFormatter(logging.Formatter):
    """Writes records without characters that a terminal would obey.

    Names and texts of other nodes and clients stand in them. The lines of a message that has
    several are indented, so that none looks like a record.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # its name there
        """Write a record without its traceback."""
        return super().formatMessage(record).replace("\n", "\n    ")

    def format(self, record: logging.LogRecord) -> str:
        """Write a record."""
        return printable(super().format(record), kept="\n\t")


def label_log_records() -> None:
    """Give every log record of this process the attributes `node` and `actor`. Idempotent.

    `node` is the node's name, `actor` the class and the number of the actor whose handler
    logs; each is "-" where there is none. Libraries that the handler calls are labelled too.
    """
    factory = logging.getLogRecordFactory()
    if not isinstance(factory, _LabelledFactory):
        logging.setLogRecordFactory(_LabelledFactory(factory))


def set_up_logging(level: str = "warning") -> None:
    """Write labelled records to standard error; the root logger's handlers stay if it has some.

    Args:
        level: `debug`, `info`, `warning`, `error` or `critical`.

    Raises:
        ValueError: the level is another one.
    """
    label_log_records()
    handler = logging.StreamHandler()
    handler.setFormatter(PrintableFormatter(FORMAT))
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
