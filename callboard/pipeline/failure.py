"""What went wrong, in one line, of what Spark tells in hundreds."""

import re
from typing import Final

#: Errors of Python, ours among them, as a traceback ends with them.
_RAISED: Final = re.compile(r"^(?:[\w.]+\.)?([A-Z]\w*(?:: .*)?)$")
_OURS: Final = "callboard."
_TRACEBACK: Final = "Traceback (most recent call last):"

_CONDITION: Final = re.compile(r"^\[[A-Z0-9_.]+\] ")
_STATE: Final = re.compile(r"\.? ?SQLSTATE: \w+.*$")
_CAUSE: Final = re.compile(r"^Caused by: (?:[\w.$]+\.)?(\w+(?:: .*)?)$")


def reason_of(error: BaseException) -> str:
    """Return why something failed, in one line without Java: `WHY; STEP` if it has a step."""
    text = str(error)
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
    causes = [found[1] for line in lines if (found := _CAUSE.match(line))]
    first = causes[-1] if causes else next(filter(None, lines), repr(error))
    return _STATE.sub("", _CONDITION.sub("", first))


def _raised_in(text: str) -> str:
    """Return the error that the last traceback of Python in a text ends with; "" for none."""
    _, found, behind = text.rpartition(_TRACEBACK)
    if not found:
        return ""
    for line in behind.splitlines()[1:]:
        if line and not line[0].isspace() and (raised := _RAISED.match(line)):
            return raised[1]
    return ""
