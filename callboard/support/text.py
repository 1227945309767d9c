"""Safe texts for untrusted objects: users' exceptions and values, and external names.

Every package may import this module. `__str__` of an exception and `__repr__` of a message are
user code, which may raise any exception, even `SystemExit`, or return megabytes. The
functions here return a short text in all these cases.
"""

import contextlib
import logging
import sys
import traceback
from collections.abc import Callable
from typing import Any, Final

#: Characters of an error's text or traceback.
TEXT_LIMIT: Final = 65_536

#: Returns the qualified name of a class without running code of its metaclass.
_qualname: Final = vars(type)["__qualname__"].__get__

#: Characters of a value in logs and errors.
REPR_LIMIT: Final = 500

#: Length of the chain of causes of an error that is searched.
_CHAIN_LIMIT: Final = 20


def error_text(error: BaseException, limit: int = TEXT_LIMIT) -> str:
    """Return the text of an error, cut to a limit; a substitute if its `__str__` raises."""
    return _call_safely(str, error, limit, "<its text could not be made>")


def class_name(value: object) -> str:
    """Return the qualified name of a value's class, without running user code."""
    return str.__str__(_qualname(type(value)))


def describe(error: BaseException, limit: int = TEXT_LIMIT) -> str:
    """Return the class of an error and its text, cut to a limit."""
    text = error_text(error, limit)
    name = class_name(error)
    return f"{name}: {text}" if text else name


def trace_of(error: BaseException) -> str:
    """Return the formatted traceback of an error; cut in the middle if it is long.

    The marks below source lines are left out, because they differ between versions of Python.
    Nodes send tracebacks to each other, and a simulation must send the same bytes for a seed
    with every version.
    """
    try:
        summary = traceback.TracebackException.from_exception(error, compact=True)
        _remove_columns(summary)
        text = "".join(summary.format())
    except BaseException:  # noqa: BLE001  # its notes and causes may be properties
        return describe(error)
    half = TEXT_LIMIT // 2
    return sendable(text if len(text) <= TEXT_LIMIT else f"{text[: half - 1]}…{text[-half:]}")


def _remove_columns(summary: traceback.TracebackException) -> None:
    """Remove the columns of a traceback and of its causes."""
    todo = [summary]
    while todo:
        current = todo.pop()
        for frame in current.stack:
            frame.colno = frame.end_colno = None
        causes = (current.__cause__, current.__context__, *(current.exceptions or ()))
        todo += [cause for cause in causes if cause is not None]


def safe_repr(value: object, limit: int = REPR_LIMIT) -> str:
    """Return the `repr` of a value, cut to a limit; a substitute if its `__repr__` raises."""
    return _call_safely(repr, value, limit, f"<a {class_name(value)} without a repr>")


def sendable(text: str) -> str:
    r"""Return a text with lone surrogates as escapes, such as `\udce9`, which UTF-8 lacks.

    Python uses them in names of files that are not UTF-8, and so in errors about such files.
    """
    if text.isascii():
        return text
    return text.encode("utf-8", "backslashreplace").decode()


def logged(log: logging.Logger, text: str, *args: object, error: BaseException) -> None:
    """Log an error from user code with its traceback; never raise, even if a log handler does.

    A traceback with lone surrogates is escaped and logged as a part of the message: a handler
    with a UTF-8 file could not write it otherwise.
    """
    try:
        if _has_surrogates(error):
            log.error("%s\n%s", text % args, trace_of(error))
        else:
            log.error(text, *args, exc_info=error)
    except BaseException:  # noqa: BLE001  # log handlers are code of the user
        if sys.__stderr__ is not None:
            with contextlib.suppress(Exception):
                sys.__stderr__.write(f"{describe(error)}, which could not be logged\n")


def _has_surrogates(error: BaseException | None) -> bool:
    """Return whether the text of an error, or of one of its causes, has lone surrogates."""
    for _ in range(_CHAIN_LIMIT):
        if error is None:
            return False
        try:
            text = "".join([str(error), *getattr(error, "__notes__", ())])
        except BaseException:  # noqa: BLE001  # the traceback has a substitute for this text
            return False
        if not text.isascii() and sendable(text) != text:
            return True
        error = error.__cause__ or error.__context__
    return False


def printable(text: str, allowed: str = "") -> str:
    r"""Return a text with escapes for characters that control a terminal or are invisible.

    Control characters, characters that change the direction of text, invisible ones and lone
    surrogates become `\x1b`, `\u202e` …; a text without them is returned as it is.

    Args:
        text: a text from a file, another node or a client.
        allowed: characters that are not escaped, such as line breaks.
    """
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in allowed else ascii(char)[1:-1] for char in text
    )


def _call_safely(make: Callable[[Any], str], value: object, limit: int, substitute: str) -> str:
    """Return the text of a function of the user, cut to a limit."""
    try:
        text = str.__str__(
            make(value)
        )  # methods of a subclass of str would be code of the user
        return sendable(text if len(text) <= limit else f"{text[: limit - 1]}…")
    except BaseException:  # noqa: BLE001  # sys.exit() in a `__str__` must not end the caller
        return substitute
