"""Who comes in: users with passwords, a function of yours, certificates, bans.

A CONNECT is looked at in this order: the ban list; then the function, if there is one, which
decides alone; else the certificate of a client that showed one and gave no name; else the table
of users; else, without a table, everybody is let in. A wrong password takes as long as a right
one, and so does a name that nobody has.
"""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

from callboard.mqtt.acl import AclEntry, TenantAccess, TopicAccess
from callboard.mqtt.ban import BanList
from callboard.mqtt.door import Admission, Door, Peer
from callboard.mqtt.link import Access
from callboard.mqtt.packet import Connect
from callboard.mqtt.rate import Limiter
from callboard.mqtt.reason_code import ReasonCode
from callboard.mqtt.scrypt import PasswordHash, hash_password

_LOG: Final = logging.getLogger(__name__)
MOST_WAITING: Final = 1_000
"""Clients whose password is waiting to be checked; further ones are told that we are busy."""
CHECKERS: Final = 2
"""Threads that check passwords; scrypt takes 16 MiB for each."""
MOST_HOSTS: Final = 10_000
"""Hosts of which failed logins are remembered; then the oldest is forgotten."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a client shows, for a function of yours.

    Attributes:
        client_id: as the client says.
        username: None if it gave none.
        password: None if it gave none.
        peer: where it comes from, with the subject of its certificate.
    """

    client_id: str
    username: str | None
    password: bytes | None
    peer: Peer


@dataclass(frozen=True, slots=True)
class Client:
    """Somebody who is in, for hooks.

    Attributes:
        client_id: of the session.
        username: None if it gave none.
        address: where it comes from.
    """

    client_id: str
    username: str | None
    address: str


SubscribeHook = Callable[[Client, str, int], int | None]
"""Called with a client, a filter and the QoS; returns the QoS or a reason code, or None."""
Verdict = bool | ReasonCode | Admission
"""What a function says: yes or no; a reason; or all of it."""
Authenticator = Callable[[Credentials], Verdict | Awaitable[Verdict]]
"""A function that lets clients in; it may be async."""


@dataclass(frozen=True, slots=True)
class Security:
    """Who may do what; replaced as a whole on a reload.

    Attributes:
        users: hashes of passwords, by name. Empty lets everybody in.
        anonymous: lets clients without a name in beside the users.
        acl: topics; empty allows all of them to everybody who is in.
        bans: who is not let in.
        login_failures: wrong passwords from one host in a minute before it has to wait.
    """

    users: Mapping[str, PasswordHash] = field(default_factory=dict)
    anonymous: bool = False
    acl: tuple[AclEntry, ...] = ()
    bans: BanList = field(default_factory=BanList)
    login_failures: int = 20

    def access(self, user: str, client_id: str, tenant: str = "") -> Access | None:
        """Return what a client may do; None is everything."""
        rules = TopicAccess(self.acl, user, client_id) if self.acl else None
        return TenantAccess(tenant, rules) if tenant else rules


class _Unruled:
    """The access of all clients that no rule is about when they come in."""

    __slots__ = ()

    is_open = True

    def may_publish(self, _topic: str) -> bool:
        """Say yes."""
        return True

    def may_subscribe(self, _topic_filter: str, qos: int) -> int:
        """Grant it."""
        return qos

    def may_receive(self, _topic: str) -> bool:
        """Say yes."""
        return True


_UNRULED: Final = Admission(access=_Unruled())


class _Ruled:
    """The access of a client that rules or hooks are about; a reload makes another one."""

    __slots__ = ("_client", "_hook", "_rules", "is_open")

    def __init__(
        self, client: Client, rules: Access | None, hook: SubscribeHook | None
    ) -> None:
        self._client = client
        self._rules = rules
        self._hook = hook
        #: Whether no topic is closed to this client.
        self.is_open = rules is None

    def may_publish(self, topic: str) -> bool:
        """Whether this client may publish there."""
        return self._rules is None or self._rules.may_publish(topic)

    def may_subscribe(self, topic_filter: str, qos: int) -> int:
        """Return the QoS or a reason code; the hook is asked about what the rules grant."""
        granted = qos if self._rules is None else self._rules.may_subscribe(topic_filter, qos)
        if self._hook is None or granted >= ReasonCode.UNSPECIFIED_ERROR:
            return granted
        try:
            answer = self._hook(self._client, topic_filter, granted)
        except Exception:  # noqa: BLE001  (a function of the user's)
            _LOG.exception("the subscribe hook failed for client %r", self._client.client_id)
            return ReasonCode.UNSPECIFIED_ERROR
        return granted if answer is None else int(answer)

    def may_receive(self, topic: str) -> bool:
        """Whether messages of a topic may go to this client."""
        return self._rules is None or self._rules.may_receive(topic)


class AuthGate:
    """Lets clients in by a `Security`, or by a function."""

    def __init__(
        self,
        security: Security | None = None,
        authenticator: Authenticator | None = None,
        subscribe_hook: SubscribeHook | None = None,
    ) -> None:
        self.security = security or Security()
        self.authenticator = authenticator
        self.subscribe_hook = subscribe_hook
        self._pool = ThreadPoolExecutor(CHECKERS, "mqtt-password")
        self._nobody: PasswordHash | None = None
        self._waiting = 0
        self._tasks: set[asyncio.Future[None]] = set()
        self._failures: dict[str, Limiter] = {}

    def close(self) -> None:
        """Forget those who wait."""
        for task in self._tasks:
            task.cancel()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def admit(
        self, connect: Connect, peer: Peer, answer: Callable[[Admission], None]
    ) -> Admission | None:
        """Decide about a client; None if `answer` is called later."""
        security = self.security
        username, properties = connect.username, connect.properties
        if security.bans.entries and security.bans.holds(
            connect.client_id, username or "", peer
        ):
            return Admission(ReasonCode.BANNED)
        if properties is not None and properties.authentication_method is not None:
            return Admission(ReasonCode.BAD_AUTHENTICATION_METHOD, "no such method here")
        if self.authenticator is not None:
            return self._ask(self.authenticator, connect, peer, answer)
        if username is None:
            name = peer.certificate.get("commonName", "")
            if name or security.anonymous or not security.users:
                return self._admission(name, connect, peer)
            return Admission(ReasonCode.NOT_AUTHORIZED, "a user name is needed")
        if not security.users:
            return self._admission(username, connect, peer)
        return self._check_password(connect, peer, answer)

    def _admission(self, user: str, connect: Connect, peer: Peer) -> Admission:
        """Let a client in; one that no rule, hook or tenant is about costs nothing."""
        if not self.security.acl and not peer.tenant and self.subscribe_hook is None:
            return _UNRULED
        client_id = f"{peer.tenant}.{connect.client_id}" if peer.tenant else connect.client_id
        access = self._access(user, client_id, connect, peer)
        return Admission(access=access, client_id=client_id if peer.tenant else None)

    def _access(self, user: str, client_id: str, connect: Connect, peer: Peer) -> _Ruled:
        rules = self.security.access(user, client_id, peer.tenant)
        client = Client(client_id, connect.username, peer.address)
        return _Ruled(client, rules, self.subscribe_hook)

    # --- a function ---

    def _ask(
        self,
        authenticator: Authenticator,
        connect: Connect,
        peer: Peer,
        answer: Callable[[Admission], None],
    ) -> Admission | None:
        shown = Credentials(connect.client_id, connect.username, connect.password, peer)
        try:
            verdict = authenticator(shown)
        except Exception:  # noqa: BLE001  (a function of the user's)
            _LOG.exception("the authenticator failed for client %r", connect.client_id)
            verdict = ReasonCode.UNSPECIFIED_ERROR
        if inspect.isawaitable(verdict):
            self._later(self._await(verdict, connect, peer, answer))
            return None
        return self._judged(verdict, connect, peer)

    async def _await(
        self,
        verdict: Awaitable[Verdict],
        connect: Connect,
        peer: Peer,
        answer: Callable[[Admission], None],
    ) -> None:
        try:
            found = await verdict
        except Exception:  # noqa: BLE001  (a function of the user's)
            _LOG.exception("the authenticator failed for client %r", connect.client_id)
            found = ReasonCode.UNSPECIFIED_ERROR
        answer(self._judged(found, connect, peer))

    def _judged(self, verdict: Verdict, connect: Connect, peer: Peer) -> Admission:
        if isinstance(verdict, Admission):
            return verdict
        if isinstance(verdict, ReasonCode):
            reason = verdict
        else:
            reason = ReasonCode.SUCCESS if verdict is True else ReasonCode.NOT_AUTHORIZED
        if reason:
            return Admission(reason)
        return self._admission(connect.username or "", connect, peer)

    # --- the table ---

    def _check_password(
        self, connect: Connect, peer: Peer, answer: Callable[[Admission], None]
    ) -> Admission | None:
        if self._waiting >= MOST_WAITING or self._has_failed_often(peer):
            return Admission(ReasonCode.SERVER_BUSY, "too many logins; try again later")
        self._later(self._verify(connect, peer, answer))
        return None

    async def _verify(
        self, connect: Connect, peer: Peer, answer: Callable[[Admission], None]
    ) -> None:
        loop = asyncio.get_running_loop()
        self._waiting += 1
        try:
            known = self.security.users.get(connect.username or "")
            if self._nobody is None:
                self._nobody = await loop.run_in_executor(self._pool, hash_password, b"nobody")
            right = await loop.run_in_executor(
                self._pool, (known or self._nobody).verify, connect.password or b""
            )
        finally:
            self._waiting -= 1
        if right and known is not None:
            answer(self._admission(connect.username or "", connect, peer))
            return
        self._note_failure(peer, loop.time())
        answer(Admission(ReasonCode.BAD_USER_NAME_OR_PASSWORD))

    def _has_failed_often(self, peer: Peer) -> bool:
        known = self._failures.get(peer.host)
        return known is not None and known.owes(asyncio.get_running_loop().time())

    def _note_failure(self, peer: Peer, now: float) -> None:
        most = self.security.login_failures
        if not most:
            return
        known = self._failures.get(peer.host)
        if known is None:
            if len(self._failures) >= MOST_HOSTS:
                del self._failures[next(iter(self._failures))]
            known = self._failures[peer.host] = Limiter(most / 60, 0, burst=most)
        known.spend(1, 0, now)

    def _later(self, work: "Awaitable[None]") -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- reload ---

    def replace(self, security: Security, door: Door) -> None:
        """Let other rules hold, for those who are connected as well.

        Who is banned, or has no entry in the table of users any more, is disconnected.
        """
        self.security = security
        for remote in list(door.links):
            link = remote.link
            if link is None or not isinstance(link.access, _Unruled | _Ruled):
                continue
            connect, peer = link.connect, remote.peer
            user = connect.username
            if user is None:
                user = peer.certificate.get("commonName", "")
            if security.bans.holds(connect.client_id, user, peer):
                remote.end(ReasonCode.ADMINISTRATIVE_ACTION)
            elif self._is_gone(user, peer):
                remote.end(ReasonCode.NOT_AUTHORIZED)
            else:
                link.access = self._access(user, connect.client_id, connect, peer)
                link.access_changed()

    def _is_gone(self, user: str, peer: Peer) -> bool:
        security = self.security
        if self.authenticator is not None or not security.users or user in security.users:
            return False
        if user:
            return peer.certificate.get("commonName") != user
        return not security.anonymous
