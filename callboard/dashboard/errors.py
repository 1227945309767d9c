"""What can be wrong with a dashboard, and how an error is told to who asked."""

from typing import Final

from callboard.kernel.errors import CallboardError
from callboard.support.text import printable, said


class DashboardError(CallboardError):
    """A dashboard cannot be shown: an extra is missing, a port is taken, or it is public."""


#: What helps where the text of an error does not say it, by the names of classes.
_STEPS: Final = {
    "NotPermitted": "let that node give the right to the one of this page (permissions)",
    "NodeUnreachable": "look at Nodes on the first page; it may be lost",
    "AskTimeout": "look at its page for what it waits for, and ask again",
    "RemoteError": "its page, and the log of its node, have the traceback",
    "ActorDown": "look for it in Events",
    "DataOverflow": "numbers have 64 bits at most",
}
_OTHER_STEP: Final = "Events and the log of the node tell more"


def explained(error: BaseException) -> tuple[int, str]:
    """Return the status of an answer, and one line that ends with the next step."""
    text = printable(" ".join(said(error).split()))
    kinds = [kind.__name__ for kind in type(error).__mro__]
    step = next((_STEPS[kind] for kind in kinds if kind in _STEPS), _OTHER_STEP)
    is_whole = ";" in text and "RemoteError" not in kinds
    return 403 if "NotPermitted" in kinds else 409, text if is_whole else f"{text}; {step}"
