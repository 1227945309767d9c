"""Groups: many actors under one name, on any nodes; a message goes to one of them or all."""

import itertools
from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter
from typing import Any, Final, Literal, TypeVar, get_args, overload

from callboard import locks
from callboard.actors.asking.gathering import Answers
from callboard.actors.asking.retry import FIRST_PAUSE
from callboard.actors.envelope import Priority
from callboard.actors.errors import WrongValue
from callboard.actors.future import Future
from callboard.actors.reference import (
    DEFAULT_TIMEOUT,
    ActorRef,
    Call,
    Callee,
    Query,
    checked_ref,
)
from callboard.actors.runtime import Runtime
from callboard.actors.values import Message
from callboard.arguments import count as checked_count
from callboard.proxies.errors import NoMembers
from callboard.proxies.names.directory import Names
from callboard.proxies.names.hash_ring import HashRing, key_bytes
from callboard.proxies.names.watch import NameAdded, NameChange, watch_name
from callboard.support.dataclass import dataclass

A = TypeVar("A")
R = TypeVar("R")

Routing = Literal["round_robin", "random", "least_busy", "hash"]

ROUTINGS: Final[tuple[str, ...]] = get_args(Routing)

#: A wait for members that is over, with the members.
_Ready = tuple[Future[list[ActorRef]], list[ActorRef]]


def _complete(ready: Iterable[_Ready]) -> None:
    """Complete waits for members, without a lock."""
    for future, refs in ready:
        future.set_result(refs)


class Members:
    """The members of a group, as known to one node; all its `Group` objects share them."""

    def __init__(self, runtime: Runtime, name: str) -> None:
        """Start watching the group on all nodes in reach."""
        self._shutdown = runtime.shutdown
        self.refs: tuple[ActorRef, ...] = ()
        #: Outstanding asks of this node, by member.
        self.asks: dict[ActorRef, int] = {}
        self._ring: HashRing[ActorRef] | None = None
        self._lock = locks.lock("members of a group", 640)
        self._waiting: list[tuple[int, Future[list[ActorRef]]]] = []
        #: Numbers the choices of the least busy member.
        self._turns = itertools.count()
        self._watcher = watch_name(runtime, name, is_group=True, on_change=self._changed)

    def close(self) -> None:
        """Stop watching."""
        self._watcher.kill()

    def add(self, ref: ActorRef) -> None:
        """Add a member."""
        ready: list[_Ready] = []
        with self._lock:
            if ref not in self.refs:
                ready = self._set((*self.refs, ref))
        _complete(ready)

    def joined(self, ref: ActorRef) -> None:
        """Add a member that joins on this node, before the directory reports it."""
        self.add(ref)
        # Calls back at once if the member is dead.
        ref.target.monitor(self, lambda _: self.remove(ref))

    def remove(self, ref: ActorRef) -> None:
        """Remove a member."""
        with self._lock:
            ready = self._set(tuple(member for member in self.refs if member != ref))
        _complete(ready)

    def find(self, key: bytes) -> ActorRef | None:
        """Return the member to which the hash ring assigns a key."""
        ring = self._ring
        if ring is None:
            with self._lock:
                ring = self._ring = HashRing(_by_id(self.refs))
        return ring.find(key)

    def least_busy(self) -> ActorRef:
        """Return the member with the fewest asks of this node outstanding.

        Members with equally many take turns, so that an idle group shares its messages.
        """
        refs = self.refs
        start = next(self._turns) % len(refs)
        return min(refs[start:] + refs[:start], key=lambda ref: self.asks.get(ref, 0))

    def count(self, ref: ActorRef, future: Future) -> None:
        """Count an ask until it is answered."""
        with self._lock:
            self.asks[ref] = self.asks.get(ref, 0) + 1
        future.add_done_callback(lambda _: self._answered(ref))

    def when(self, count: int) -> Future[list[ActorRef]]:
        """Return a future that is done once the group has a number of members."""
        future: Future[list[ActorRef]] = Future(f"a group of {count}")
        with self._lock:
            refs = list(self.refs)
            if len(refs) < count:
                self._waiting = [entry for entry in self._waiting if not entry[1].is_done]
                self._waiting.append((count, future))
        if len(refs) < count:
            return self._shutdown.guard(future)
        future.set_result(refs)
        return future

    def _answered(self, ref: ActorRef) -> None:
        """Count down the outstanding asks of a member, because one was answered."""
        with self._lock:
            left = self.asks.pop(ref, 1) - 1
            if left > 0:
                self.asks[ref] = left

    def _changed(self, change: NameChange) -> None:
        """Apply a change that the watcher of the name reports."""
        if isinstance(change, NameAdded):
            self.add(change.ref)
        else:
            self.remove(change.ref)

    def _set(self, refs: tuple[ActorRef, ...]) -> list[_Ready]:
        """Replace the members. The caller must hold the lock.

        Returns:
            The waits that have enough members now. The caller completes them without the lock.
        """
        self.refs = tuple(sorted(refs))
        if self._ring is not None:
            self._ring = self._ring.updated(_by_id(self.refs))
        waiting, self._waiting = self._waiting, []
        ready = []
        for count, future in waiting:
            if len(refs) < count:
                self._waiting.append((count, future))
            else:
                ready.append((future, list(self.refs)))
        return ready


@dataclass(eq=False, repr=False)
class Group(Callee[A]):
    """Actors of any nodes under one name; `node.group(name)` makes it.

    `tell`, `ask` and `call` go to one member, chosen by the routing; `broadcast` and `ask_all`
    go to all. A member that ends, or whose node is lost, is removed.
    """

    _runtime: Runtime
    _names: Names
    _members: Members
    name: str
    routing: str
    _key: Callable[[Any], Any] | str | None

    def __post_init__(self) -> None:
        """Check routing and key; only nodes create groups.

        Raises:
            ValueError: the routing is unknown, or `key` does not fit it.
        """
        key, routing = self._key, self.routing
        if routing not in ROUTINGS:
            msg = f"routing={routing!r} is not known; use one of {', '.join(ROUTINGS)}"
            raise WrongValue(msg)
        if (key is not None) != (routing == "hash"):
            msg = "routing='hash' needs key=…, an attribute's name or a function of the message"
            raise WrongValue(msg if routing == "hash" else "key=… needs routing='hash'")
        self._key_of = attrgetter(key) if isinstance(key, str) else key
        self._turns = itertools.count()

    # --- members ---

    def join(self, ref: ActorRef[A]) -> None:
        """Add an actor of this node or another one; it stays until it ends or leaves.

        This node stores the membership and reports it to the others. If this node is lost, the
        actor is no longer a member.
        """
        self._names.join(self.name, ref)
        self._members.joined(ref)

    def leave(self, ref: ActorRef[A]) -> bool:
        """Remove an actor that joined on this node; return False if it did not join here."""
        if not self._names.withdraw(self.name, checked_ref(ref, "leave()")):
            return False
        ref.target.demonitor(self._members)
        self._members.remove(ref)
        return True

    def members(self) -> list[ActorRef[A]]:
        """Return the members known to this node, sorted."""
        return list(self._members.refs)

    def ready(self, count: int = 1) -> Future[list[ActorRef[A]]]:
        """Return a future of the members, done once there are at least `count`."""
        return self._members.when(checked_count(count, "ready", 1))

    def __len__(self) -> int:
        return len(self._members.refs)

    def __iter__(self) -> Iterator[ActorRef[A]]:
        return iter(self._members.refs)

    def __contains__(self, ref: object) -> bool:
        return ref in self._members.refs

    def __repr__(self) -> str:
        return f"<Group {self.name}, {len(self)} members, {self.routing}>"

    # --- one member ---

    def at(self, key: Any) -> ActorRef[A]:
        """Return the member to which a key is assigned, independently of the routing.

        A key always leads to the same member. If members join or leave, few keys change.

        Args:
            key: str, bytes, int, float, bool, UUID, None, or a tuple of them.

        Raises:
            NoMembers: the group is empty.
            TypeError: the key has another type.
        """
        member = self._members.find(key_bytes(key))
        if member is None:
            raise self._empty()
        return member

    def pick(self, message: Message = None) -> ActorRef[A]:
        """Choose the member for a message according to the routing.

        Raises:
            NoMembers: the group is empty.
            TypeError: the message lacks a key of a type that can be hashed.
        """
        if self._key_of is not None:
            if isinstance(message, Call) or message is None:
                msg = (
                    "routing='hash' cannot take a key from a call; use group.at(key) of "
                    f"{self.name!r}"
                )
                raise TypeError(msg)
            try:
                key = self._key_of(message)
            except AttributeError as error:
                msg = (
                    f"group {self.name!r} needs the key {self._key!r} in each message: {error}"
                )
                raise AttributeError(msg) from error
            return self.at(key)
        refs = self._members.refs
        if not refs:
            raise self._empty()
        if self.routing == "random":
            return refs[self._runtime.random.randrange(len(refs))]
        if self.routing == "least_busy":
            return self._members.least_busy()
        return refs[next(self._turns) % len(refs)]

    def tell(self, message: Message, *, priority: Priority = "normal") -> None:
        """Send a message to one member; without members it is a dead letter.

        Args:
            message: any message.
            priority: "high" goes before all normal messages that wait in the mailbox.

        Raises:
            NotSerializable: the member is remote and the message cannot be serialized.
        """
        try:
            ref = self.pick(message)
        except NoMembers:
            self._runtime.dead_letter(self._runtime.nobody, message, None)
        else:
            ref.tell(message, priority=priority)

    async def atell(self, message: Message, *, priority: Priority = "normal") -> None:
        """Send a message to one member as soon as it has room: `tell` for coroutines.

        The member is chosen first; then this waits for room in the mailbox of that member.
        """
        try:
            ref = self.pick(message)
        except NoMembers:
            self._runtime.dead_letter(self._runtime.nobody, message, None)
        else:
            await ref.atell(message, priority=priority)

    @overload
    def ask(
        self,
        message: Query[R],
        timeout: float | None = ...,
        retries: int = ...,
        backoff: float = ...,
        *,
        priority: Priority = ...,
    ) -> Future[R]: ...
    @overload
    def ask(
        self,
        message: Message,
        timeout: float | None = ...,
        retries: int = ...,
        backoff: float = ...,
        *,
        priority: Priority = ...,
    ) -> Future: ...
    def ask(
        self,
        message: Message,
        timeout: float | None = DEFAULT_TIMEOUT,
        retries: int = 0,
        backoff: float = FIRST_PAUSE,
        *,
        priority: Priority = "normal",
    ) -> Future:
        """Send a message to one member and return the future of its answer.

        The future fails like a future of `ActorRef.ask`, or with `NoMembers`. Repeats go to the
        same member.
        """
        try:
            ref = self.pick(message)
        except NoMembers as error:
            failed: Future = Future(self)
            failed.set_exception(error)
            return failed
        future = ref.ask(message, timeout, retries, backoff, priority=priority)
        if self.routing == "least_busy":
            self._members.count(ref, future)
        return future

    def map(
        self,
        items: Iterable[object],
        limit: int = 16,
        timeout: float | None = DEFAULT_TIMEOUT,
        retries: int = 0,
        backoff: float = FIRST_PAUSE,
    ) -> Answers[Any]:
        """Send each message to one member as an ask, and yield the answers in order.

        `for answer in group.map(pages)`, `async for …` in a coroutine; `.result(t)` and `await`
        return them as a list. The first error is raised and stops the iteration.

        Args:
            items: the messages, consumed as needed.
            limit: concurrent asks over all members.
            timeout: seconds of each ask.
            retries: how often each ask is retried, as for `ask`.
            backoff: the backoff between the retries of each ask.

        Raises:
            WrongArgument: the items are not messages, or the limit is not a number.
        """
        return Answers(lambda item: self.ask(item, timeout, retries, backoff), items, limit)

    # --- all members ---

    def broadcast(self, message: Message) -> int:
        """Send a message to all members; return their number."""
        refs = self._members.refs
        for ref in refs:
            ref.tell(message)
        return len(refs)

    def ask_all(
        self, message: Message, timeout: float | None = DEFAULT_TIMEOUT
    ) -> list[Future]:
        """Send a message to all members; return the futures of their answers."""
        return [ref.ask(message, timeout) for ref in self._members.refs]

    def _empty(self) -> NoMembers:
        """Return the error of a group without members."""
        return NoMembers(
            f"group {self.name!r} has no members in reach of {self._runtime.name}; "
            "wait for them with group.ready()"
        )


def _by_id(refs: tuple[ActorRef, ...]) -> dict[bytes, ActorRef]:
    return {ref.node_id + ref.actor_id.to_bytes(4): ref for ref in refs}
