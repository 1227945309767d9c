"""Admission of clients: peer address, credentials, and the decision.

Functions of the application may decide, too. Their exceptions are logged, and never end the
driver of a connection.
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
    """The origin of a connection.

    Attributes:
        address: `HOST:PORT`, or the path of a Unix socket.
        host: without the port; empty for a Unix socket.
        listener: the address of the listener that accepted the connection.
        certificate: subject of the client's certificate, by name; empty without one.
        tenant: the organisation in the certificate, on a listener for tenants.
        user: the name proved by an authentication method; None without one.
        subject: the whole subject of the certificate as text (RFC 4514), on a listener whose
            users are subjects.
    """

    address: str = ""
    host: str = ""
    listener: str = ""
    certificate: Mapping[str, str] = _NO_CERTIFICATE
    tenant: str = ""
    user: str | None = None
    subject: str = ""

    @property
    def certified(self) -> str:
        """The user that the certificate names: its subject or its common name."""
        return self.subject or self.certificate.get("commonName", "")


@dataclass(frozen=True, slots=True)
class Credentials:
    """The credentials of a client, for a function of the application.

    Attributes:
        client_id: the client id from the CONNECT.
        username: None without one.
        password: None without one.
        peer: the origin of the connection, with the subject of the certificate.
    """

    client_id: str
    username: str | None
    password: bytes | None = field(repr=False)
    peer: Peer


@dataclass(frozen=True, slots=True)
class Admission:
    """The answer to a CONNECT.

    Attributes:
        reason_code: 0 admits the client.
        text: the reason for a refusal, for the client.
        access: the client's permissions; None is all.
        client_id: replaces the client id of the CONNECT.
        user: the authenticated user, who owns the session. Empty for a client without a name
            among clients with names; None if no client has to authenticate.
        listed: the name in the router's table of users; empty if it is not there.
    """

    reason_code: ReasonCode = ReasonCode.SUCCESS
    text: str = ""
    access: Access | None = None
    client_id: str | None = None
    user: str | None = None
    listed: str = ""


NO_SUCH_METHOD: Final = Admission(
    ReasonCode.BAD_AUTHENTICATION_METHOD, "the router does not have that authentication method"
)


#: Called with a decision that was not made at once.
OnAdmission = Callable[[Admission], None]


class Admitter(Protocol):
    """Decides which clients are admitted."""

    def admit(self, connect: Connect, peer: Peer, answer: OnAdmission) -> Admission | None:
        """Decide; or return None, and call `answer` later, on the connections' thread."""


def call_function(label: str, function: Callable[..., T], *arguments: object) -> T | ReasonCode:
    """Call a function of the application; return UNSPECIFIED_ERROR if it raises.

    Args:
        label: names the function in the log.
        function: may return an awaitable; see `await_answer`.
        arguments: the arguments of the function.
    """
    try:
        return function(*arguments)
    except BaseException as error:  # noqa: BLE001  (a function of the application)
        logged(_log, "%s failed", label, error=error)
        return ReasonCode.UNSPECIFIED_ERROR


async def await_answer(label: str, answer: Awaitable[T]) -> T | ReasonCode:
    """Await the result of an async function; return UNSPECIFIED_ERROR if it raises."""
    try:
        return await answer
    except BaseException as error:  # a function of the application
        task = asyncio.current_task()
        if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
            raise  # the task was cancelled; the function did not raise this by mistake
        logged(_log, "%s failed", label, error=error)
        return ReasonCode.UNSPECIFIED_ERROR
