"""Errors of the dashboard, and their form in HTTP responses."""

from typing import Final

from callboard.kernel.errors import CallboardError
from callboard.support.text import error_text, printable


class DashboardError(CallboardError):
    """A dashboard cannot start: a missing extra, a port in use, or a public address."""


#: Next steps by class name, for errors whose text does not contain one.
_STEPS: Final = {
    "NotPermitted": "grant the right to this dashboard's node in that node's permissions",
    "NodeUnreachable": "check Nodes on the first page; the node may be lost",
    "AskTimeout": "open the actor's page to see what it waits for, and try again",
    "RemoteError": "see the traceback on the actor's page or in the log of its node",
    "ActorDown": "see Events for the reason",
    "DataOverflow": "numbers have at most 64 bits",
}
_OTHER_STEP: Final = "see Events and the log of the node"


def explained(error: BaseException) -> tuple[int, str]:
    """Return the HTTP status for an error, and one line that ends with the next step."""
    text = printable(" ".join(error_text(error).split()))
    kinds = [kind.__name__ for kind in type(error).__mro__]
    step = next((_STEPS[kind] for kind in kinds if kind in _STEPS), _OTHER_STEP)
    is_whole = ";" in text and "RemoteError" not in kinds
    return 403 if "NotPermitted" in kinds else 409, text if is_whole else f"{text}; {step}"
