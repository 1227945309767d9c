"""What status subscribers receive: changes among the peers, and errors."""

from typing import Final

from callboard.endpoint.code import EC, SC
from callboard.endpoint.peer import EndpointInfo

__all__ = ["Error", "Status"]

_STATUS_TEXTS: Final = {
    SC.PeerAdded: "handshake successful",
    SC.PeerRemoved: "removed connection to remote peer",
    SC.PeerLost: "lost connection to remote peer",
    SC.EndpointDiscovered: "found a path to an endpoint",
    SC.EndpointUnreachable: "lost the last path to an endpoint",
}
_ERROR_TEXTS: Final = {
    EC.PeerInvalid: "cannot unpeer from unknown peer",
    EC.PeerUnavailable: "unable to connect to remote peer",
}


class _Notice:
    """A code, the endpoint that it is about, and a text for people."""

    __slots__ = ("_code", "_context", "_message")
    _code: EC | SC

    def __init__(self, code: EC | SC, context: EndpointInfo | None, message: str) -> None:
        self._code = code
        self._context = context
        self._message = message

    def context(self) -> EndpointInfo | None:
        """Return the endpoint that this is about, if it is about one."""
        return self._context

    def message(self) -> str:
        """Return the text for people."""
        return self._message

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Notice) or type(self) is not type(other):
            return NotImplemented
        return self._facts() == other._facts()

    def __hash__(self) -> int:
        return hash(self._facts())

    def __str__(self) -> str:
        about = []
        if self._context is not None:
            about = [str(self._context)]
            if self._context.network.is_set():
                about.append(str(self._context.network.get()))
        return f"{self._code.text}({', '.join([*about, chr(34) + self._message + chr(34)])})"

    def _facts(self) -> tuple[object, ...]:
        return type(self), self._code, self._context, self._message

    __repr__ = __str__


class Status(_Notice):
    """A change among the peers.

    >>> Status(SC.PeerAdded, EndpointInfo("A1"))
    peer_added(A1, "handshake successful")
    """

    __slots__ = ()

    def __init__(
        self,
        code: SC = SC.Unspecified,
        context: EndpointInfo | None = None,
        message: str | None = None,
    ) -> None:
        text = _STATUS_TEXTS.get(code, "") if message is None else message
        super().__init__(SC(code), context, text)

    def code(self) -> SC:
        """Return what changed."""
        return SC(self._code)


class Error(_Notice):
    """Something that went wrong behind the user's back; a value, not an exception.

    >>> Error(EC.PeerUnavailable)
    peer_unavailable("unable to connect to remote peer")
    """

    __slots__ = ()

    def __init__(
        self,
        code: EC = EC.NoError,
        context: EndpointInfo | None = None,
        message: str | None = None,
    ) -> None:
        text = _ERROR_TEXTS.get(code, "") if message is None else message
        super().__init__(EC(code), context, text)

    def code(self) -> EC:
        """Return what went wrong; equal to its number."""
        return EC(self._code)

    def __str__(self) -> str:
        return "none" if self._code == EC.NoError else super().__str__()

    __repr__ = __str__
