"""Texts about what is not ours: errors of user code, its values, names that came from outside.

The lowest file of the house: every room may import it. An exception's `__str__` and a message's
`__repr__` are code of the user: they may raise anything, `SystemExit` too, or return megabytes.
Such texts are made here, where neither happens to the caller.
"""

import contextlib
import logging
import sys
import traceback
from collections.abc import Callable
from typing import Any, Final

#: Characters of an error's text or traceback: enough to read, never too large.
TEXT_LIMIT: Final = 65_536

#: What a class is called, without asking its metaclass.
_qualname: Final = vars(type)["__qualname__"].__get__

#: Characters of a value as logs and errors quote it.
REPR_LIMIT: Final = 500

#: Errors behind an error that are looked at.
_CHAIN_LIMIT: Final = 20


def error_text(error: BaseException, limit: int = TEXT_LIMIT) -> str:
    """Return the text of an error, cut to a limit, whatever its `__str__` does."""
    return _made(str, error, limit, "<its text could not be made>")


def class_name(value: object) -> str:
    """Return the qualified name of a value's class, whatever its metaclass does."""
    return str.__str__(_qualname(type(value)))


def describe(error: BaseException, limit: int = TEXT_LIMIT) -> str:
    """Return the class of an error and its text, cut to a limit."""
    text = error_text(error, limit)
    name = class_name(error)
    return f"{name}: {text}" if text else name


def trace_of(error: BaseException) -> str:
    """Return the formatted traceback of an error; cut in the middle if it is long.

    Without the marks below lines, which differ between versions of Python: nodes tell it each
    other, and a seed of a simulation sends the same bytes on all of them.
    """
    try:
        told = traceback.TracebackException.from_exception(error, compact=True)
        _unmark(told)
        text = "".join(told.format())
    except BaseException:  # noqa: BLE001  # its notes and causes may be properties
        return describe(error)
    half = TEXT_LIMIT // 2
    return sendable(text if len(text) <= TEXT_LIMIT else f"{text[: half - 1]}…{text[-half:]}")


def _unmark(told: traceback.TracebackException) -> None:
    """Take the columns out of a traceback and those behind it."""
    waiting = [told]
    while waiting:
        each = waiting.pop()
        for frame in each.stack:
            frame.colno = frame.end_colno = None
        behind = (each.__cause__, each.__context__, *(each.exceptions or ()))
        waiting += [other for other in behind if other is not None]


def safe_repr(value: object, limit: int = REPR_LIMIT) -> str:
    """Return the `repr` of a value, cut to a limit, whatever its `__repr__` does."""
    return _made(repr, value, limit, f"<a {class_name(value)} without a repr>")


def sendable(text: str) -> str:
    r"""Return a text with lone surrogates as escapes, such as `\udce9`: UTF-8 has none of them.

    Python has them in names of files that are not UTF-8, and so in errors about these.
    """
    if text.isascii():
        return text
    return text.encode("utf-8", "backslashreplace").decode()


def logged(log: logging.Logger, text: str, *args: object, error: BaseException) -> None:
    """Log an error of user code with its traceback; also where a log handler raises.

    A traceback that UTF-8 cannot hold is a part of the message, escaped: a handler with a file
    would lose it.
    """
    try:
        if _has_surrogates(error):
            log.error("%s\n%s", text % args, trace_of(error))
        else:
            log.error(text, *args, exc_info=error)
    except BaseException:  # noqa: BLE001  # the log is the user's, too
        if sys.__stderr__ is not None:
            with contextlib.suppress(Exception):
                sys.__stderr__.write(f"{describe(error)}, which could not be logged\n")


def _has_surrogates(error: BaseException | None) -> bool:
    """Return whether the text of an error, or of one behind it, has lone surrogates."""
    for _ in range(_CHAIN_LIMIT):
        if error is None:
            return False
        try:
            text = "".join([str(error), *getattr(error, "__notes__", ())])
        except BaseException:  # noqa: BLE001  # the traceback says so, too
            return False
        if not text.isascii() and sendable(text) != text:
            return True
        error = error.__cause__ or error.__context__
    return False


def printable(text: str, kept: str = "") -> str:
    r"""Return a text with what a terminal would obey or hide written as escapes.

    Control characters, those that turn the direction of text, invisible ones and lone
    surrogates become `\x1b`, `\u202e` …; a text without them is returned as it is.

    Args:
        text: from a file, another node or a client.
        kept: characters that stay, such as a line break where lines are printed.
    """
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() or each in kept else ascii(each)[1:-1] for each in text
    )


def _made(make: Callable[[Any], str], value: object, limit: int, instead: str) -> str:
    """Return a text that code of a user makes, cut to a limit."""
    try:
        text = str.__str__(make(value))  # one of a derived class runs code of its own
        return sendable(text if len(text) <= limit else f"{text[: limit - 1]}…")
    except BaseException:  # noqa: BLE001  # sys.exit() in a __str__ ends nothing
        return instead
