"""One-line reasons for Spark's errors, whose texts have hundreds of lines."""

import re
from typing import Final

#: The last line of a Python traceback, with the error.
_RAISED: Final = re.compile(r"^(?:[\w.]+\.)?([A-Z]\w*(?:: .*)?)$")
_OURS: Final = "callboard."
_TRACEBACK: Final = "Traceback (most recent call last):"

_CONDITION: Final = re.compile(r"^\[[A-Z0-9_.]+\] ")
_STATE: Final = re.compile(r"\.? ?SQLSTATE: \w+.*$")
_CAUSE: Final = re.compile(r"^Caused by: (?:[\w.$]+\.)?(\w+(?:: .*)?)$")


#: Spark's complaint about a Python that did not start within ten seconds.
_SLOW_START: Final = "Python worker failed to connect back"


def is_slow_start(error: BaseException) -> bool:
    """Return whether a query failed because a Python process was not ready in time."""
    return _SLOW_START in str(error)


def reason_of(error: BaseException) -> str:
    """Return the reason of an error in one line without Java: `REASON; REMEDY`."""
    text = str(error)
    if is_slow_start(error):
        return (
            "the machine is so busy that a Python process did not start within Spark's ten"
            " seconds; start the query again, which continues from its checkpoint, or run fewer"
            " at a time"
        )
    lines = [line.strip() for line in text.splitlines()]
    ours = [line for line in lines if line.startswith(_OURS)]
    if ours:
        return ours[-1].partition(": ")[2]
    raised = _raised_in(text)
    if raised:
        return raised
    if not type(error).__module__.startswith(("pyspark", "py4j")):
        kind = type(error).__name__
        return f"{kind}: {' '.join(lines)}" if lines else kind
    causes = [match[1] for line in lines if (match := _CAUSE.match(line))]
    first = causes[-1] if causes else next(filter(None, lines), repr(error))
    return _STATE.sub("", _CONDITION.sub("", first))


def _raised_in(text: str) -> str:
    """Return the error at the end of the last Python traceback in a text, or ""."""
    _, marker, rest = text.rpartition(_TRACEBACK)
    if not marker:
        return ""
    for line in rest.splitlines()[1:]:
        if line and not line[0].isspace() and (raised := _RAISED.match(line)):
            return raised[1]
    return ""
