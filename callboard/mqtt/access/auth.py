"""Authentication: users with passwords, a function of yours, certificates, methods, bans.

A CONNECT is looked at in this order: the ban list; then the authentication method that it names
(`authentication`), which decides alone; else the function, if there is one, which decides alone
as well; else the certificate of a client that showed one and gave no name; else the table of
users; else, without a table and without methods, everybody is let in. A wrong password takes as
long as a right one, and so does an unknown name.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import field, replace
from functools import partial
from typing import Any, Final

from callboard.kernel.queue import TokenBucket
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
from callboard.mqtt.access.scram import SCRAM, ScramExchange, ScramKeys
from callboard.mqtt.access.scrypt import PasswordHash, hash_password
from callboard.mqtt.router.link import Access
from callboard.mqtt.wire.packet import Connect
from callboard.mqtt.wire.reason_code import ReasonCode
from callboard.support.dataclass import dataclass
from callboard.support.seconds import check_numbers

#: Clients whose password is waiting to be checked; further ones are refused as *server busy*.
MOST_WAITING: Final = 1_000
#: Threads that check passwords; scrypt takes 16 MiB for each.
CHECKERS: Final = 2
TOO_MANY: Final = Admission(ReasonCode.SERVER_BUSY, "too many logins; try again later")
#: Hosts of which failed logins are remembered; then the oldest is forgotten.
MOST_HOSTS: Final = 10_000


#: The answer of a function: yes or no; a reason; or all of it.
Verdict = bool | ReasonCode | Admission
#: A function that lets clients in; it may be async.
Authenticator = Callable[[Credentials], Verdict | Awaitable[Verdict]]
#: Begins an exchange with a client that named the method.
AuthenticationMethod = Callable[[Credentials], Exchange]


@dataclass(frozen=True, slots=True)
class Security:
    """The users and what they may do; replaced as a whole on a reload.

    Attributes:
        users: hashes of passwords, by name. Empty, and with no method, lets everybody in.
        scram: keys for the method SCRAM-SHA-256, by name; empty if no user has any.
        anonymous: lets clients without a name in beside the users.
        acl: topics; empty allows all of them to every client that is in.
        bans: the clients that are not let in.
        login_failures: wrong passwords from one host in a minute before it has to wait.
    """

    users: Mapping[str, PasswordHash] = field(default_factory=dict, repr=False)
    scram: Mapping[str, ScramKeys] = field(default_factory=dict, repr=False)
    anonymous: bool = False
    acl: tuple[AclEntry, ...] = ()
    bans: BanList = field(default_factory=BanList)
    login_failures: int = 20

    def __post_init__(self) -> None:
        check_numbers(self)


#: For all clients that no rule or hook is about when they come in.
_UNRULED: Final = Admission(access=Ruled(Client("", None, "")))


@dataclass(eq=False, repr=False)
class AuthGate:
    """Lets clients in by a `Security`, or by a function."""

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

    @property
    def is_guarded(self) -> bool:
        """Whether clients have to show who they are, by a password or a method."""
        return bool(self.security.users or self.security.scram or self.methods)

    def close(self) -> None:
        """Forget the clients that wait."""
        for task in self._tasks:
            task.cancel()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def admit(self, connect: Connect, peer: Peer, answer: OnAdmission) -> Admission | None:
        """Decide about a client; None if `answer` is called later."""
        security = self.security
        username, properties = connect.username, connect.properties
        if security.bans.entries and security.bans.holds(
            connect.client_id, peer.user or username or "", peer
        ):
            return Admission(ReasonCode.BANNED)
        if peer.user is not None:
            return self._admission(peer.user, connect, peer, peer.user)
        if properties is not None and properties.authentication_method is not None:
            return admission.NO_SUCH_METHOD
        if self.authenticator is not None:
            return self._ask(self.authenticator, connect, peer, answer)
        certified = peer.certificate.get("commonName", "")
        if username is None:
            if certified or security.anonymous or not self.is_guarded:
                user = certified or ("" if self.is_guarded else None)
                return self._admission(certified, connect, peer, user)
            return Admission(ReasonCode.NOT_AUTHORIZED, "a user name is needed")
        if not self.is_guarded:  # the name is not proved, and so no user's
            return self._admission(username, connect, peer, certified or None)
        if self._waiting >= MOST_WAITING or self._has_failed_often(peer):
            return TOO_MANY
        self._later(self._verify(connect, peer, answer))
        return None

    def _admission(
        self, name: str, connect: Connect, peer: Peer, user: str | None
    ) -> Admission:
        """Let a client in under the rules of a name; its sessions belong to a user."""
        security = self.security
        listed = "" if user is None or self.is_removed(user) else user
        if peer.tenant:  # tenants have names of their own
            user = f"{peer.tenant}/{user or ''}"
        if not security.acl and not peer.tenant and self.subscribe_hook is None:
            if user is None:
                return _UNRULED
            return Admission(access=_UNRULED.access, user=user, listed=listed)
        client_id = f"{peer.tenant}.{connect.client_id}" if peer.tenant else connect.client_id
        access = self._access(name, client_id, connect, peer)
        said = client_id if peer.tenant else None
        return Admission(access=access, client_id=said, user=user, listed=listed)

    def is_removed(self, user: str) -> bool:
        """Return whether a user is not in the table of users."""
        security = self.security
        return user not in security.users and user not in security.scram

    def _access(self, user: str, client_id: str, connect: Connect, peer: Peer) -> Ruled:
        """Return what a client may do, by rules and hooks."""
        client = Client(client_id, connect.username, peer.address)
        return Ruled(client, self.security.acl, user, self.subscribe_hook, peer.tenant)

    # --- a method ---

    def authenticate(
        self, connect: Connect, peer: Peer, candidate: Candidate
    ) -> Authentication | Admission:
        """Begin with a client whose CONNECT names a method, or say why not."""
        name = (connect.properties and connect.properties.authentication_method) or ""
        method = self.methods.get(name)
        if method is None and name == SCRAM and self.security.scram:
            method = self._scram
        if self.security.bans.holds(connect.client_id, connect.username or "", peer):
            return Admission(ReasonCode.BANNED)
        if method is None:
            return admission.NO_SUCH_METHOD
        if self._has_failed_often(peer):
            return TOO_MANY
        begin = partial(method, _shown(connect, peer))
        failed = partial(self._note_failure, peer)
        return Authentication(candidate, name, begin, self._later, failed)

    def _scram(self, _shown: Credentials) -> Exchange:
        """Begin an exchange of SCRAM-SHA-256."""
        return ScramExchange(self.security.scram.get)

    # --- a function ---

    def _ask(
        self, authenticator: Authenticator, connect: Connect, peer: Peer, answer: OnAdmission
    ) -> Admission | None:
        """Ask the user's function; None if it takes its time."""
        what = f"the authenticator for client {connect.client_id!r}"
        verdict = admission.call_function(what, authenticator, _shown(connect, peer))
        if not inspect.isawaitable(verdict):
            return self._judged(verdict, connect, peer)

        async def judge_later() -> None:
            answer(self._judged(await admission.await_answer(what, verdict), connect, peer))

        self._later(judge_later())
        return None

    def _judged(self, verdict: Verdict, connect: Connect, peer: Peer) -> Admission:
        """Return the admission that a function's verdict stands for."""
        user = connect.username or peer.certificate.get("commonName", "")
        if isinstance(verdict, Admission):
            return verdict if verdict.user is not None else replace(verdict, user=user)
        if not isinstance(verdict, ReasonCode):
            verdict = ReasonCode.SUCCESS if verdict is True else ReasonCode.NOT_AUTHORIZED
        if verdict:
            return Admission(verdict)
        return self._admission(connect.username or "", connect, peer, user)

    # --- the table ---

    async def _verify(self, connect: Connect, peer: Peer, answer: OnAdmission) -> None:
        """Check a password on a thread, and answer."""
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
            user = connect.username or ""
            answer(self._admission(user, connect, peer, user))
            return
        self._note_failure(peer)
        answer(Admission(ReasonCode.BAD_USER_NAME_OR_PASSWORD))

    def _has_failed_often(self, peer: Peer) -> bool:
        """Return whether a host has to wait after wrong passwords."""
        known = self._failures.get(peer.host)
        return known is not None and known.is_empty(asyncio.get_running_loop().time())

    def _note_failure(self, peer: Peer) -> None:
        """Count a wrong password of a host."""
        most = self.security.login_failures
        if not most:
            return
        now = asyncio.get_running_loop().time()
        if (known := self._failures.get(peer.host)) is None:
            if len(self._failures) >= MOST_HOSTS:
                del self._failures[next(iter(self._failures))]
            known = self._failures[peer.host] = TokenBucket(most / 60, most)
        known.spend(1, now)

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something on the loop, and keep it until it is done."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- reload ---

    def review(
        self, connect: Connect, peer: Peer, proof: Authentication | None
    ) -> Access | ReasonCode:
        """Return what a client that is in may do by the rules of now; or why it has to go.

        A client has to go that is banned, or has no entry in the table of users any more.
        """
        user = connect.username if peer.user is None else peer.user
        if user is None:
            user = peer.certificate.get("commonName", "")
        if self.security.bans.holds(connect.client_id, user, peer):
            return ReasonCode.ADMINISTRATIVE_ACTION
        if self._is_gone(user, peer, proof):
            return ReasonCode.NOT_AUTHORIZED
        return self._access(user, connect.client_id, connect, peer)

    def _is_gone(self, user: str, peer: Peer, proof: Authentication | None = None) -> bool:
        """Return whether a client has no entry by which it would come in."""
        security = self.security
        if proof is not None:
            is_ours = proof.method == SCRAM and SCRAM not in self.methods
            return is_ours and user not in security.scram
        if self.authenticator is not None or not self.is_guarded or user in security.users:
            return False
        if user:
            return peer.certificate.get("commonName") != user
        return not security.anonymous


def _shown(connect: Connect, peer: Peer) -> Credentials:
    """Return what a client shows."""
    return Credentials(connect.client_id, connect.username, connect.password, peer)
