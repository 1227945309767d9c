"""Errors of CAF, by category and code.

actors.CallboardError
└── RemoteError
    └── CafError       an answer of a CAF actor, or a refusal of its node
basp.RemoteProtocolError
└── LimitExceeded      a peer makes this node keep too much: its connection ends
"""

from enum import IntEnum
from typing import Final

from callboard.kernel.actors import ExitReason
from callboard.kernel.errors import RemoteError
from callboard.protocol_errors import RemoteProtocolError


class SystemError17(IntEnum):
    """Codes of the category `system` of CAF 0.17 that nodes send or report."""

    UNEXPECTED_MESSAGE = 1
    REQUEST_RECEIVER_DOWN = 3
    REQUEST_TIMEOUT = 4
    NO_ACTOR_PUBLISHED_AT_PORT = 6
    UNEXPECTED_ACTOR_MESSAGING_INTERFACE = 7
    UNSUPPORTED_SYS_KEY = 9
    DISCONNECT_DURING_HANDSHAKE = 11
    NO_ROUTE_TO_RECEIVING_NODE = 13
    CANNOT_CONNECT_TO_NODE = 17
    CANNOT_SPAWN_ACTOR_FROM_ARGUMENTS = 23
    UNKNOWN_TYPE = 26
    RUNTIME_ERROR = 28
    INCOMPATIBLE_VERSIONS = 47
    INCOMPATIBLE_APPLICATION_IDS = 48
    MALFORMED_BASP_MESSAGE = 49
    SERIALIZING_BASP_PAYLOAD_FAILED = 50
    REDUNDANT_CONNECTION = 51
    REMOTE_LOOKUP_FAILED = 52
    CONNECTION_TIMEOUT = 53


#: Category of errors of CAF itself, and of the ends of its actors.
SYSTEM: Final = "system"
EXIT: Final = "exit"

#: The reason of an actor's end by the code of the category `exit`.
_REASONS: Final = {
    0: ExitReason.NORMAL,
    1: ExitReason.ERROR,
    2: ExitReason.NOT_FOUND,
    3: ExitReason.ERROR,
    4: ExitReason.SHUTDOWN,
    5: ExitReason.KILLED,
    6: ExitReason.UNREACHABLE,
    7: ExitReason.UNREACHABLE,
}
_EXIT_NAMES: Final = (
    "normal",
    "unhandled_exception",
    "unknown",
    "out_of_workers",
    "user_shutdown",
    "kill",
    "remote_link_unreachable",
    "unreachable",
)
_CODES: Final = {
    ExitReason.NORMAL: 0,
    ExitReason.ERROR: 1,
    ExitReason.NOT_FOUND: 2,
    ExitReason.SHUTDOWN: 4,
    ExitReason.KILLED: 5,
    ExitReason.UNREACHABLE: 6,
}


def _name_of(category: str, code: int) -> str:
    """Return CAF's name of a code; "" if it is unknown."""
    if category == SYSTEM:
        return next((kind.name.lower() for kind in SystemError17 if kind == code), "")
    return _EXIT_NAMES[code] if category == EXIT and code < len(_EXIT_NAMES) else ""


class LimitExceeded(RemoteProtocolError):
    """A peer made this node keep more than a limit allows."""


class CafError(RemoteError):
    """An error with CAF's code, such as the answer of a CAF actor to an ask.

    If a handler returns a `CafError`, or sets it on a promise, the answer has this code.

    Attributes:
        code: number of the error in its category.
        category: `system`, `exit`, or the category of an application; at most 10 characters.
        context: values with details of the error, often one text.
    """

    def __init__(self, code: int, category: str = SYSTEM, *context: object) -> None:
        """Create an error."""
        name = _name_of(category, code)
        label = f"CAF {category or 'error'} {code}" + (f" ({name})" if name else "")
        super().__init__(label, ", ".join(map(str, context))[:1000])
        self.code, self.category, self.context = code, category, context

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CafError) and self._parts == other._parts

    def __hash__(self) -> int:
        return hash((self.code, self.category))

    @property
    def _parts(self) -> tuple[object, ...]:
        """Everything that distinguishes errors."""
        return self.code, self.category, self.context


def reason_of(error: CafError | None) -> tuple[ExitReason, str]:
    """Return the reason of an actor's end, and a text for people, from its error."""
    if error is None:
        return ExitReason.NORMAL, ""
    if error.category == EXIT:
        return _REASONS.get(error.code, ExitReason.ERROR), str(error)
    return ExitReason.ERROR, str(error)


def exit_error(reason: ExitReason | str, detail: str = "") -> CafError | None:
    """Return the error of an actor's end; None for a normal one."""
    if reason == ExitReason.NORMAL:
        return None
    code = _CODES.get(ExitReason(reason), 1)
    return CafError(code, EXIT, *([detail[:1000]] if code == 1 and detail else []))
