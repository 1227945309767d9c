"""Errors that code logs because it must continue: a life must not log any."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def logged_errors(errors: list[str], *planned: type[BaseException]) -> Iterator[None]:
    """Append what callboard logs as an error to `errors`, but for the types in `planned`."""
    listener = _Listener(errors, planned)
    logger = logging.getLogger("callboard")
    logger.addHandler(listener)
    try:
        yield
    finally:
        logger.removeHandler(listener)


class _Listener(logging.Handler):
    def __init__(self, errors: list[str], planned: tuple[type[BaseException], ...]) -> None:
        super().__init__(logging.ERROR)
        self._errors = errors
        self._planned = planned

    def emit(self, record: logging.LogRecord) -> None:
        cause = record.exc_info[1] if record.exc_info else None
        if not isinstance(cause, self._planned):
            self._errors.append(f"{record.getMessage()}: {cause!r}")
