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


class _SharedAccess:
    """A client's access, by whatever rules hold at the time."""

    __slots__ = ("client", "hook", "now", "tenant", "user")

    def __init__(
        self,
        user: str,
        client: Client,
        tenant: str,
        now: Access | None,
        hook: SubscribeHook | None,
    ) -> None:
        self.user = user
        self.client = client
        self.tenant = tenant
        self.now = now
        self.hook = hook

    @property
    def is_open(self) -> bool:
        """Whether no topic is closed to this client."""
        return self.now is None

    def may_publish(self, topic: str) -> bool:
        """Whether this client may publish there."""
        return self.now is None or self.now.may_publish(topic)

    def may_subscribe(self, topic_filter: str, qos: int) -> int:
        """Return the QoS or a reason code; the hook is asked about what the rules grant."""
        granted = qos if self.now is None else self.now.may_subscribe(topic_filter, qos)
        if self.hook is None or granted >= ReasonCode.UNSPECIFIED_ERROR:
            return granted
        try:
            answer = self.hook(self.client, topic_filter, granted)
        except Exception:  # noqa: BLE001  (a function of the user's)
            _LOG.exception("the subscribe hook failed for client %r", self.client.client_id)
            return ReasonCode.UNSPECIFIED_ERROR
        return granted if answer is None else int(answer)

    def may_receive(self, topic: str) -> bool:
        """Whether messages of a topic may go to this client."""
        return self.now is None or self.now.may_receive(topic)


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

    def admit(self, connect: Connect, peer: Peer, answer: Callable[[Admission], None]) -> None:
        """Decide about a client."""
        security = self.security
        if security.bans.holds(connect.client_id, connect.username or "", peer):
            answer(Admission(ReasonCode.BANNED))
        elif connect.properties and connect.properties.authentication_method is not None:
            answer(Admission(ReasonCode.BAD_AUTHENTICATION_METHOD, "no such method here"))
        elif self.authenticator is not None:
            self._ask(self.authenticator, connect, peer, answer)
        elif connect.username is None:
            name = peer.certificate.get("commonName", "")
            if name or security.anonymous or not security.users:
                answer(self._admission(name, connect, peer))
            else:
                answer(Admission(ReasonCode.NOT_AUTHORIZED, "a user name is needed"))
        elif not security.users:
            answer(self._admission(connect.username, connect, peer))
        else:
            self._check_password(connect, peer, answer)

    def _admission(self, user: str, connect: Connect, peer: Peer) -> Admission:
        client_id = f"{peer.tenant}.{connect.client_id}" if peer.tenant else connect.client_id
        rules = self.security.access(user, client_id, peer.tenant)
        client = Client(client_id, connect.username, peer.address)
        access = _SharedAccess(user, client, peer.tenant, rules, self.subscribe_hook)
        renamed = client_id if peer.tenant else None
        return Admission(access=access, client_id=renamed)

    # --- a function ---

    def _ask(
        self,
        authenticator: Authenticator,
        connect: Connect,
        peer: Peer,
        answer: Callable[[Admission], None],
    ) -> None:
        shown = Credentials(connect.client_id, connect.username, connect.password, peer)
        try:
            verdict = authenticator(shown)
        except Exception:  # noqa: BLE001  (a function of the user's)
            _LOG.exception("the authenticator failed for client %r", connect.client_id)
            verdict = ReasonCode.UNSPECIFIED_ERROR
        if inspect.isawaitable(verdict):
            self._later(self._await(verdict, connect, peer, answer))
        else:
            answer(self._judged(verdict, connect, peer))

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
    ) -> None:
        if self._waiting >= MOST_WAITING or self._has_failed_often(peer):
            answer(Admission(ReasonCode.SERVER_BUSY, "too many logins; try again later"))
            return
        self._later(self._verify(connect, peer, answer))

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
            if link is None or not isinstance(link.access, _SharedAccess):
                continue
            access = link.access
            if security.bans.holds(access.client.client_id, access.user, remote.peer):
                remote.end(ReasonCode.ADMINISTRATIVE_ACTION)
            elif self._is_gone(access.user, remote.peer):
                remote.end(ReasonCode.NOT_AUTHORIZED)
            else:
                access.now = security.access(
                    access.user, access.client.client_id, access.tenant
                )
                link.access_changed()

    def _is_gone(self, user: str, peer: Peer) -> bool:
        security = self.security
        if self.authenticator is not None or not security.users or user in security.users:
            return False
        if user:
            return peer.certificate.get("commonName") != user
        return not security.anonymous
