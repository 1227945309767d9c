"""Who comes in: users with passwords, a function of yours, certificates, methods, bans.

A CONNECT is looked at in this order: the ban list; then the authentication method that it names
(`authentication`), which decides alone; else the function, if there is one, which decides alone
as well; else the certificate of a client that showed one and gave no name; else the table of
users; else, without a table and without methods, everybody is let in. A wrong password takes as
long as a right one, and so does a name that nobody has.
"""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from callboard.mqtt.acl import AclEntry, TenantAccess, TopicAccess
from callboard.mqtt.authentication import Authentication, Exchange
from callboard.mqtt.ban import BanList
from callboard.mqtt.client_access import Client, Ruled, SubscribeHook, Unruled
from callboard.mqtt.door import NO_SUCH_METHOD, Admission, Door, Peer
from callboard.mqtt.link import Access
from callboard.mqtt.packet import Connect
from callboard.mqtt.rate import Limiter
from callboard.mqtt.reason_code import ReasonCode
from callboard.mqtt.scram import SCRAM, ScramExchange, ScramKeys
from callboard.mqtt.scrypt import PasswordHash, hash_password

if TYPE_CHECKING:
    from callboard.mqtt.remote_link import RemoteLink

_LOG: Final = logging.getLogger(__name__)
MOST_WAITING: Final = 1_000
"""Clients whose password is waiting to be checked; further ones are told that we are busy."""
CHECKERS: Final = 2
"""Threads that check passwords; scrypt takes 16 MiB for each."""
TOO_MANY: Final = Admission(ReasonCode.SERVER_BUSY, "too many logins; try again later")
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


Verdict = bool | ReasonCode | Admission
"""What a function says: yes or no; a reason; or all of it."""
Authenticator = Callable[[Credentials], Verdict | Awaitable[Verdict]]
"""A function that lets clients in; it may be async."""
AuthenticationMethod = Callable[[Credentials], Exchange]
"""Begins an exchange with a client that named the method."""


@dataclass(frozen=True, slots=True)
class Security:
    """Who may do what; replaced as a whole on a reload.

    Attributes:
        users: hashes of passwords, by name. Empty, and with no method, lets everybody in.
        scram: keys for the method SCRAM-SHA-256, by name; empty for those who have none.
        anonymous: lets clients without a name in beside the users.
        acl: topics; empty allows all of them to everybody who is in.
        bans: who is not let in.
        login_failures: wrong passwords from one host in a minute before it has to wait.
    """

    users: Mapping[str, PasswordHash] = field(default_factory=dict)
    scram: Mapping[str, ScramKeys] = field(default_factory=dict)
    anonymous: bool = False
    acl: tuple[AclEntry, ...] = ()
    bans: BanList = field(default_factory=BanList)
    login_failures: int = 20

    def access(self, user: str, client_id: str, tenant: str = "") -> Access | None:
        """Return what a client may do; None is everything."""
        rules = TopicAccess(self.acl, user, client_id) if self.acl else None
        return TenantAccess(tenant, rules) if tenant else rules


_UNRULED: Final = Admission(access=Unruled())


class AuthGate:
    """Lets clients in by a `Security`, or by a function."""

    def __init__(
        self,
        security: Security | None = None,
        authenticator: Authenticator | None = None,
        subscribe_hook: SubscribeHook | None = None,
        methods: Mapping[str, AuthenticationMethod] | None = None,
    ) -> None:
        self.security = security or Security()
        self.authenticator = authenticator
        self.methods = dict(methods or {})
        self.subscribe_hook = subscribe_hook
        self._pool = ThreadPoolExecutor(CHECKERS, "mqtt-password")
        self._nobody: PasswordHash | None = None
        self._waiting = 0
        self._tasks: set[asyncio.Future[None]] = set()
        self._failures: dict[str, Limiter] = {}

    @property
    def is_guarded(self) -> bool:
        """Whether clients have to show who they are, by a password or a method."""
        return bool(self.security.users or self.security.scram or self.methods)

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
            connect.client_id, peer.user or username or "", peer
        ):
            return Admission(ReasonCode.BANNED)
        if peer.user is not None:
            return self._admission(peer.user, connect, peer)
        if properties is not None and properties.authentication_method is not None:
            return NO_SUCH_METHOD
        if self.authenticator is not None:
            return self._ask(self.authenticator, connect, peer, answer)
        if username is None:
            name = peer.certificate.get("commonName", "")
            if name or security.anonymous or not self.is_guarded:
                return self._admission(name, connect, peer)
            return Admission(ReasonCode.NOT_AUTHORIZED, "a user name is needed")
        if not self.is_guarded:
            return self._admission(username, connect, peer)
        return self._check_password(connect, peer, answer)

    def _admission(self, user: str, connect: Connect, peer: Peer) -> Admission:
        """Let a client in; one that no rule, hook or tenant is about costs nothing."""
        if not self.security.acl and not peer.tenant and self.subscribe_hook is None:
            return _UNRULED
        client_id = f"{peer.tenant}.{connect.client_id}" if peer.tenant else connect.client_id
        access = self._access(user, client_id, connect, peer)
        return Admission(access=access, client_id=client_id if peer.tenant else None)

    def _access(self, user: str, client_id: str, connect: Connect, peer: Peer) -> Ruled:
        rules = self.security.access(user, client_id, peer.tenant)
        client = Client(client_id, connect.username, peer.address)
        return Ruled(client, rules, self.subscribe_hook)

    # --- a method ---

    def authenticate(
        self, connect: Connect, remote: "RemoteLink"
    ) -> Authentication | Admission:
        """Begin with a client whose CONNECT names a method, or say why not."""
        peer = remote.peer
        name = connect.properties.authentication_method if connect.properties else None
        method = self.methods.get(name or "")
        if method is None and name == SCRAM and self.security.scram:
            method = self._scram
        if self.security.bans.holds(connect.client_id, connect.username or "", peer):
            return Admission(ReasonCode.BANNED)
        if method is None:
            return NO_SUCH_METHOD
        if self._has_failed_often(peer):
            return TOO_MANY
        shown = Credentials(connect.client_id, connect.username, connect.password, peer)
        return Authentication(
            remote,
            connect,
            partial(method, shown),
            self._later,
            partial(self._note_failure, peer),
        )

    def _scram(self, _shown: Credentials) -> Exchange:
        return ScramExchange(self.security.scram.get)

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
            return TOO_MANY
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
        self._note_failure(peer)
        answer(Admission(ReasonCode.BAD_USER_NAME_OR_PASSWORD))

    def _has_failed_often(self, peer: Peer) -> bool:
        known = self._failures.get(peer.host)
        return known is not None and known.owes(asyncio.get_running_loop().time())

    def _note_failure(self, peer: Peer) -> None:
        most = self.security.login_failures
        if not most:
            return
        now = asyncio.get_running_loop().time()
        known = self._failures.get(peer.host)
        if known is None:
            if len(self._failures) >= MOST_HOSTS:
                del self._failures[next(iter(self._failures))]
            known = self._failures[peer.host] = Limiter(most / 60, 0, burst=most)
        known.spend(1, 0, now)

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
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
            if link is None or not isinstance(link.access, Unruled | Ruled):
                continue
            connect, peer = link.connect, remote.peer
            user = connect.username if peer.user is None else peer.user
            if user is None:
                user = peer.certificate.get("commonName", "")
            if security.bans.holds(connect.client_id, user, peer):
                remote.end(ReasonCode.ADMINISTRATIVE_ACTION)
            elif self._is_gone(user, peer, remote.proof):
                remote.end(ReasonCode.NOT_AUTHORIZED)
            else:
                link.access = self._access(user, connect.client_id, connect, peer)
                link.access_changed()

    def _is_gone(self, user: str, peer: Peer, proof: Authentication | None = None) -> bool:
        security = self.security
        if proof is not None:
            has_keys = proof.method != SCRAM or SCRAM in self.methods or user in security.scram
            return not has_keys
        if self.authenticator is not None or not self.is_guarded or user in security.users:
            return False
        if user:
            return peer.certificate.get("commonName") != user
        return not security.anonymous
