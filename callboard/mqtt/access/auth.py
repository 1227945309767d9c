"""Authentication by passwords, an application's function, certificates or methods; bans.

A CONNECT is checked in this order:

1. the ban list;
2. the authentication method that it names (`authentication`), which alone decides;
3. the function, if there is one, which alone decides;
4. the certificate, if the client showed one and sent no user name;
5. the table of users;
6. without a table and without methods, every client is admitted.

Checking a wrong password takes as long as a right one, and so does an unknown name.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import field, replace
from functools import partial
from typing import Any, Final

from callboard.mqtt.access import admission
from callboard.mqtt.access.acl import (
    AclEntry,
    Client,
    Ruled,
    SubscribeHook,
)
from callboard.mqtt.access.admission import Admission, Credentials, OnAdmission, Peer
from callboard.mqtt.access.authentication import Authentication, Candidate, Exchange
from callboard.mqtt.access.ban import BanList
from callboard.mqtt.access.mosquitto_hash import StoredPassword
from callboard.mqtt.access.scram import SCRAM, ScramExchange, ScramKeys
from callboard.mqtt.access.scrypt import PasswordHash, hash_password
from callboard.mqtt.router.link import Access
from callboard.mqtt.wire.packet import Connect
from callboard.mqtt.wire.reason_code import ReasonCode
from callboard.support.dataclass import dataclass
from callboard.support.seconds import check_numbers
from callboard.support.token_bucket import TokenBucket

#: Clients whose password waits to be checked; more are refused as *server busy*.
MOST_WAITING: Final = 1_000
#: Threads that check passwords; scrypt uses 16 MiB in each.
CHECKERS: Final = 2
TOO_MANY: Final = Admission(ReasonCode.SERVER_BUSY, "too many logins; try again later")
#: Hosts whose failed logins are remembered; the oldest is forgotten for a new one.
MOST_HOSTS: Final = 10_000


#: The result of an authenticator: yes or no; a reason; or a complete admission.
Verdict = bool | ReasonCode | Admission
#: A function that decides about clients; it may be async.
Authenticator = Callable[[Credentials], Verdict | Awaitable[Verdict]]
#: Starts an exchange with a client that named the method.
AuthenticationMethod = Callable[[Credentials], Exchange]


@dataclass(frozen=True, slots=True)
class Security:
    """The users and their permissions; replaced as a whole on a reload.

    Attributes:
        users: hashes of passwords, by name. If it is empty and methods are, too, every
            client is admitted.
        scram: keys for the method SCRAM-SHA-256, by name; empty if no user has any.
        anonymous: whether clients without a name are admitted in addition to the users.
        acl: rules about topics; without rules, admitted clients may use all topics.
        bans: clients that are refused.
        checks_filters: whether a subscription needs a rule that covers its filter. If not, as
            in mosquitto, every filter is granted, and only messages with a rule are delivered.
        login_failures: wrong passwords per minute and host, before the host has to wait.
        listeners: the users, rules and `anonymous` of some listeners, by address, in place of
            these. Bans and failures apply to all.
    """

    users: Mapping[str, StoredPassword] = field(default_factory=dict, repr=False)
    scram: Mapping[str, ScramKeys] = field(default_factory=dict, repr=False)
    anonymous: bool = False
    acl: tuple[AclEntry, ...] = ()
    bans: BanList = field(default_factory=BanList)
    login_failures: int = 20
    checks_filters: bool = True
    listeners: "Mapping[str, Security]" = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_numbers(self)

    def of_listener(self, listener: str) -> "Security":
        """Return the users and rules of a listener."""
        return self.listeners.get(listener, self)


#: The admission of clients without rules or hooks.
_UNRULED: Final = Admission(access=Ruled(Client("", None, "")))


@dataclass(eq=False, repr=False)
class AuthGate:
    """Decides about clients by a `Security`, or by a function."""

    security: Security = field(default_factory=Security)
    authenticator: Authenticator | None = None
    subscribe_hook: SubscribeHook | None = None
    methods: Mapping[str, AuthenticationMethod] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._pool = ThreadPoolExecutor(CHECKERS, "mqtt-password")
        self._nobody: PasswordHash | None = None
        self._waiting = 0
        self._tasks: set[asyncio.Future[None]] = set()
        self._failures: dict[str, TokenBucket] = {}

    def is_guarded(self, listener: str) -> bool:
        """Return whether clients of a listener must authenticate: by password or method."""
        security = self.security.of_listener(listener)
        return bool(security.users or security.scram or self.methods)

    def close(self) -> None:
        """Drop the clients whose password is being checked."""
        for task in self._tasks:
            task.cancel()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def admit(self, connect: Connect, peer: Peer, answer: OnAdmission) -> Admission | None:
        """Decide about a client; None if `answer` is called later."""
        bans, is_guarded = self.security.bans, self.is_guarded(peer.listener)
        username, properties = connect.username, connect.properties
        if bans.entries and bans.holds(connect.client_id, peer.user or username or "", peer):
            return Admission(ReasonCode.BANNED)
        if peer.user is not None:
            return self._admission(peer.user, connect, peer, peer.user)
        if properties is not None and properties.authentication_method is not None:
            return admission.NO_SUCH_METHOD
        if self.authenticator is not None:
            return self._ask(self.authenticator, connect, peer, answer)
        common_name = peer.certified
        if username is None:
            if (
                common_name
                or self.security.of_listener(peer.listener).anonymous
                or not is_guarded
            ):
                user = common_name or ("" if is_guarded else None)
                return self._admission(common_name, connect, peer, user)
            return Admission(ReasonCode.NOT_AUTHORIZED, "a user name is needed")
        if not is_guarded:  # the name is not proved, so it is not the session's owner
            return self._admission(username, connect, peer, common_name or None)
        if self._waiting >= MOST_WAITING or self._has_failed_often(peer):
            return TOO_MANY
        self._later(self._verify(connect, peer, answer))
        return None

    def _admission(
        self, name: str, connect: Connect, peer: Peer, user: str | None
    ) -> Admission:
        """Admit a client with the rules of a name; `user` owns its sessions."""
        security = self.security.of_listener(peer.listener)
        listed = "" if user is None or self.is_removed(user) else user
        if peer.tenant:  # each tenant has a separate set of user names
            user = f"{peer.tenant}/{user or ''}"
        if not security.acl and not peer.tenant and self.subscribe_hook is None:
            if user is None:
                return _UNRULED
            return Admission(access=_UNRULED.access, user=user, listed=listed)
        client_id = f"{peer.tenant}.{connect.client_id}" if peer.tenant else connect.client_id
        access = self._access(name, client_id, connect, peer)
        new_id = client_id if peer.tenant else None
        return Admission(access=access, client_id=new_id, user=user, listed=listed)

    def is_removed(self, user: str) -> bool:
        """Return whether a user is missing in all tables of users."""
        tables = self.security, *self.security.listeners.values()
        return not any(user in table.users or user in table.scram for table in tables)

    def _access(self, user: str, client_id: str, connect: Connect, peer: Peer) -> Ruled:
        """Return the permissions of a client, by rules and hooks."""
        client = Client(client_id, connect.username, peer.address)
        acl, checks = self.security.of_listener(peer.listener).acl, self.security.checks_filters
        return Ruled(client, acl, user, self.subscribe_hook, peer.tenant, checks_filters=checks)

    # --- authentication methods ---

    def authenticate(
        self, connect: Connect, peer: Peer, candidate: Candidate
    ) -> Authentication | Admission:
        """Start the method that a CONNECT names, or return the refusal."""
        name = (connect.properties and connect.properties.authentication_method) or ""
        method = self.methods.get(name)
        if method is None and name == SCRAM and self.security.of_listener(peer.listener).scram:
            method = self._scram
        if self.security.bans.holds(connect.client_id, connect.username or "", peer):
            return Admission(ReasonCode.BANNED)
        if method is None:
            return admission.NO_SUCH_METHOD
        if self._has_failed_often(peer):
            return TOO_MANY
        begin = partial(method, _credentials(connect, peer))
        failed = partial(self._count_failure, peer)
        return Authentication(candidate, name, begin, self._later, failed)

    def _scram(self, credentials: Credentials) -> Exchange:
        """Start an exchange of SCRAM-SHA-256."""
        return ScramExchange(self.security.of_listener(credentials.peer.listener).scram.get)

    # --- the function of the application ---

    def _ask(
        self, authenticator: Authenticator, connect: Connect, peer: Peer, answer: OnAdmission
    ) -> Admission | None:
        """Call the application's function; return None if it is async."""
        label = f"the authenticator for client {connect.client_id!r}"
        verdict = admission.call_function(label, authenticator, _credentials(connect, peer))
        if not inspect.isawaitable(verdict):
            return self._judged(verdict, connect, peer)

        async def judge_later() -> None:
            answer(self._judged(await admission.await_answer(label, verdict), connect, peer))

        self._later(judge_later())
        return None

    def _judged(self, verdict: Verdict, connect: Connect, peer: Peer) -> Admission:
        """Convert the result of the function to an admission."""
        user = connect.username or peer.certified
        if isinstance(verdict, Admission):
            return verdict if verdict.user is not None else replace(verdict, user=user)
        if not isinstance(verdict, ReasonCode):
            verdict = ReasonCode.SUCCESS if verdict is True else ReasonCode.NOT_AUTHORIZED
        if verdict:
            return Admission(verdict)
        return self._admission(connect.username or "", connect, peer, user)

    # --- the table of users ---

    async def _verify(self, connect: Connect, peer: Peer, answer: OnAdmission) -> None:
        """Check a password on a thread, then answer."""
        loop = asyncio.get_running_loop()
        self._waiting += 1
        try:
            stored = self.security.of_listener(peer.listener).users.get(connect.username or "")
            if self._nobody is None:
                self._nobody = await loop.run_in_executor(self._pool, hash_password, b"nobody")
            password, nobody = connect.password or b"", self._nobody
            is_right = False
            if stored is not None:
                is_right = await loop.run_in_executor(self._pool, stored.verify, password)
            if not isinstance(stored, PasswordHash):  # the other hashes take less time
                await loop.run_in_executor(self._pool, nobody.verify, password)
        finally:
            self._waiting -= 1
        if is_right and stored is not None:
            user = connect.username or ""
            answer(self._admission(user, connect, peer, user))
            return
        self._count_failure(peer)
        answer(Admission(ReasonCode.BAD_USER_NAME_OR_PASSWORD))

    def _has_failed_often(self, peer: Peer) -> bool:
        """Return whether a host must wait after wrong passwords."""
        bucket = self._failures.get(peer.host)
        return bucket is not None and bucket.is_empty(asyncio.get_running_loop().time())

    def _count_failure(self, peer: Peer) -> None:
        """Count a wrong password of a host."""
        most = self.security.login_failures
        if not most:
            return
        now = asyncio.get_running_loop().time()
        if (bucket := self._failures.get(peer.host)) is None:
            if len(self._failures) >= MOST_HOSTS:
                del self._failures[next(iter(self._failures))]
            bucket = self._failures[peer.host] = TokenBucket(most / 60, most)
        bucket.spend(1, now)

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine on the loop, and keep a reference until it is done."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- reload ---

    def review(
        self, connect: Connect, peer: Peer, proof: Authentication | None
    ) -> Access | ReasonCode:
        """Return the permissions of a connected client by the current rules, or why it must go.

        A client must go if it is banned, or was removed from the table of users.
        """
        user = connect.username if peer.user is None else peer.user
        if user is None:
            user = peer.certified
        if self.security.bans.holds(connect.client_id, user, peer):
            return ReasonCode.ADMINISTRATIVE_ACTION
        if self._is_gone(user, peer, proof):
            return ReasonCode.NOT_AUTHORIZED
        return self._access(user, connect.client_id, connect, peer)

    def _is_gone(self, user: str, peer: Peer, proof: Authentication | None = None) -> bool:
        """Return whether the rules no longer admit the client."""
        security = self.security.of_listener(peer.listener)
        if proof is not None:
            is_ours = proof.method == SCRAM and SCRAM not in self.methods
            return is_ours and user not in security.scram
        if self.authenticator is not None or not self.is_guarded(peer.listener):
            return False
        if user in security.users:
            return False
        if user:
            return peer.certified != user
        return not security.anonymous


def _credentials(connect: Connect, peer: Peer) -> Credentials:
    """Return the credentials of a client."""
    return Credentials(connect.client_id, connect.username, connect.password, peer)
