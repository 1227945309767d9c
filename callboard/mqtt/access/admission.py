"""A client that wants to come in: its peer address, its credentials, the verdict.

Functions of the user's may decide, too: what they raise is logged, and never ends the driver of
a connection.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import field
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol, TypeVar

from callboard.mqtt.router.link import Access
from callboard.mqtt.wire.packet import Connect
from callboard.mqtt.wire.reason_code import ReasonCode
from callboard.support.dataclass import dataclass
from callboard.support.text import logged

T = TypeVar("T")
_log: Final = logging.getLogger("callboard.mqtt")
_NO_CERTIFICATE: Final[Mapping[str, str]] = MappingProxyType({})


class Peer(NamedTuple):
    """Where a client comes from.

    Attributes:
        address: `HOST:PORT`, or the path of a Unix socket.
        host: without the port; empty for a Unix socket.
        listener: the address of the listener that it came to.
        certificate: subject of its certificate, name to value; empty without one.
        tenant: the organisation in it, on a listener for tenants.
        user: the name it has proved by a method of authentication; None without one.
    """

    address: str = ""
    host: str = ""
    listener: str = ""
    certificate: Mapping[str, str] = _NO_CERTIFICATE
    tenant: str = ""
    user: str | None = None


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a client shows, for a function of the user's.

    Attributes:
        client_id: as the client says.
        username: None if it gave none.
        password: None if it gave none.
        peer: where it comes from, with the subject of its certificate.
    """

    client_id: str
    username: str | None
    password: bytes | None = field(repr=False)
    peer: Peer


@dataclass(frozen=True, slots=True)
class Admission:
    """The answer to a CONNECT.

    Attributes:
        reason_code: 0 lets the client in.
        text: why not, for the client.
        access: what it may do; None is everything.
        client_id: the id to use in place of what the client said.
        user: who the client has proved to be: sessions belong to users. Empty for a client that
            comes in without a name where others have one, None where nobody has to prove
            anything.
        listed: the name in the router's table of users; empty if it is not there.
    """

    reason_code: ReasonCode = ReasonCode.SUCCESS
    text: str = ""
    access: Access | None = None
    client_id: str | None = None
    user: str | None = None
    listed: str = ""


NO_SUCH_METHOD: Final = Admission(
    ReasonCode.BAD_AUTHENTICATION_METHOD, "no such authentication method here"
)


#: Called with a decision that takes its time.
OnAdmission = Callable[[Admission], None]


class Admitter(Protocol):
    """Decides which clients come in."""

    def admit(self, connect: Connect, peer: Peer, answer: OnAdmission) -> Admission | None:
        """Decide; or return None, and call `answer` later, on the connections' thread."""


def call_function(what: str, function: Callable[..., T], *arguments: object) -> T | ReasonCode:
    """Return what a function answers; UNSPECIFIED_ERROR if it raises.

    Args:
        what: names the function in the log.
        function: may return an awaitable; see `await_answer`.
        arguments: of the function.
    """
    try:
        return function(*arguments)
    except BaseException as error:  # noqa: BLE001  (a function of the user's)
        logged(_log, "%s failed", what, error=error)
        return ReasonCode.UNSPECIFIED_ERROR


async def await_answer(what: str, answer: Awaitable[T]) -> T | ReasonCode:
    """Return what an async function answers; UNSPECIFIED_ERROR if it raises."""
    try:
        return await answer
    except BaseException as error:  # a function of the user
        task = asyncio.current_task()
        if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
            raise  # it was cancelled, and did not just raise that
        logged(_log, "%s failed", what, error=error)
        return ReasonCode.UNSPECIFIED_ERROR
