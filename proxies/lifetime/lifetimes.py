"""Proxies of one node and of its actors elsewhere: drives `holding` and `registry`.

`remote_ref` may be called from any thread; the rest runs on the runner, with its role.

A proxy is held while its ref is in use here. The table of refs is weak: what the garbage
collection takes away is put into a queue, and released with the next look at it. A look
finds a proxy that is watched or that messages wait in for a path, and comes back to it.
"""

import weakref
from collections import deque
from collections.abc import Callable, Container, Generator, Iterator
from itertools import islice
from typing import Any, Final, Protocol

from callboard.actors.errors import InvalidAddress
from callboard.actors.exit_reason import ExitReason
from callboard.actors.reference import ActorRef, Down
from callboard.actors.runtime import Runtime
from callboard.actors.system_actor import ActorContext
from callboard.basp.control import pack_down, pack_release, read_down
from callboard.basp.frame import Frame
from callboard.basp.header import FIRST_ACTOR, NODE_ACTOR
from callboard.basp.node_id import NodeId
from callboard.proxies.address import parse_address
from callboard.proxies.ledger.credit import KNOWS_CREDIT
from callboard.proxies.ledger.ref_counts import RemoteRefs
from callboard.proxies.ledger.registry import HolderRegistry
from callboard.proxies.lifetime.proxy import Proxy
from callboard.proxies.messages import Failure
from callboard.proxies.route_table import OLD_PATH_LIMIT, RouteTable

#: Proxies of one node that are gone through in one turn: there may be a million.
AT_ONCE: Final = 256


class _WeakRef(weakref.ref[ActorRef[Any]]):
    """A weak reference to an actor's ref, that knows which one it was."""

    __slots__ = ("key",)

    key: tuple[bytes, int]


class Pace(Protocol):
    """What makes the proxies here, which have credit for bounded mailboxes elsewhere."""

    def make(self, node: bytes, number: int, sightings: int, /) -> Proxy:
        """Make a proxy; with the lock held."""

    def announce(self, proxy: Proxy, /) -> None:
        """Tell the host of an actor that this node has a proxy of it."""

    def unanswered(self, proxy: Proxy, /) -> None:
        """Take note that an announce was refused: nobody says whether there are bounds."""

    def is_owed(self, proxy: Proxy, /) -> bool:
        """Return whether messages were sent whose node has yet to say if there are bounds."""

    def lose(self, proxy: Proxy, /) -> None:
        """Lose what waits for an actor that ended."""


class CreditLender(Protocol):
    """What gives credit for the bounded mailboxes here."""

    def announced(self, node: bytes, number: int, sightings: int, /) -> None:
        """Tell a node that has a proxy of an actor whether it has bounds."""

    def released(self, node: bytes, number: int = NODE_ACTOR, /) -> None:
        """Forget a node that holds no proxy of an actor, or of none, any more."""

    def lost(self, node: bytes, /) -> None:
        """Forget a node that is out of reach."""

    def guests_of(self, number: int, /) -> Any:
        """Return the nodes that send to an actor with a bounded mailbox; else None."""


class Lifetimes:
    """The proxies that this node holds, and those that others hold of its actors."""

    #: Gives credit to those who hold proxies.
    lender: CreditLender

    def __init__(
        self, runtime: Runtime, routes: RouteTable, pace: Pace, proxy_limit: int
    ) -> None:
        """Begin without proxies.

        Args:
            runtime: of the node.
            routes: to other nodes.
            pace: makes the proxies.
            proxy_limit: proxies of actors here that one other node may hold.
        """
        self._runtime = runtime
        self._routes = routes
        self._proxy_limit = proxy_limit
        self._lock = routes.lock
        self._refs: dict[tuple[bytes, int], _WeakRef] = {}
        #: Refs that are gone, to be released. A callback of the garbage collection may come
        #: anywhere, also where a lock is held, so all that it does is to append here.
        self._gone: deque[_WeakRef] = deque()
        self._pace = pace
        self._holdings = RemoteRefs(pace.make)
        self._holdings.sightings = KNOWS_CREDIT
        self.holders = HolderRegistry(runtime.takes)
        self.held_numbers: Container[int] = self.holders.numbers
        #: What nodes are being told again.
        self._owed: dict[bytes, Generator[tuple[int, ExitReason, str], None, None]] = {}

    def ref_text(self, node: bytes, number: int) -> str:
        """Return a ref's text, with an address where the node is known to listen."""
        return self._routes.ref_text(node, number)

    def is_reachable(self, node: bytes) -> bool:
        """Return whether a path leads to another node."""
        return self._routes.has_path(NodeId(node))

    def guests_of(self, number: int) -> Any:
        """Return the nodes that send to an actor with a bounded mailbox; else None."""
        return self.lender.guests_of(number)

    # --- proxies here ---

    def remote_ref(self, node: bytes, number: int) -> ActorRef[Any]:
        """Return the ref of an actor elsewhere; its proxy is made, and announced, when new."""
        known = self._refs.get((node, number))
        ref = None if known is None else known()
        return self._find_or_learn(node, number) if ref is None else ref

    def _find_or_learn(self, node: bytes, number: int) -> ActorRef[Any]:
        """Return the ref of an actor elsewhere; make its proxy if there is none."""
        key = (node, number)
        with self._lock:
            known = self._refs.get(key)
            ref = None if known is None else known()
            if ref is not None:
                return ref
            proxy = self._holdings.get(node, number)
            is_new = proxy is None
            if proxy is None:
                proxy = self._holdings.learned(node, number)
            ref = ActorRef(self._runtime, node, number, proxy)
            weak = self._refs[key] = _WeakRef(ref, self._gone.append)
            weak.key = key
        if is_new:
            self._pace.announce(proxy)
        return ref

    def proxies(self) -> list[Proxy]:
        """Return all proxies."""
        with self._lock:
            return self._holdings.all()

    def proxies_of(self, node: bytes) -> list[Proxy]:
        """Return the proxies of a node's actors."""
        with self._lock:
            return self._holdings.of(node)

    def proxy_of(self, node: bytes, number: int) -> Proxy | None:
        """Return the proxy of an actor, if there is one."""
        with self._lock:
            return self._holdings.get(node, number)

    @property
    def count(self) -> int:
        """How many remote actors this node knows."""
        return len(self._refs)

    def take_down(self, frame: Frame) -> None:
        """Take a `down_message`: an actor elsewhere ended.

        Raises:
            MalformedPayload: its payload breaks the layout.
        """
        number, reason, detail = read_down(frame)
        proxy = self.proxy_of(frame.source, number)
        if proxy is not None:
            proxy.actor_ended(ExitReason.from_ordinal(reason), detail)
            if proxy.waiting is not None:
                self._pace.lose(proxy)

    def refuse_monitors(self, teller: bytes, refusal: Failure) -> None:
        """Take note that an actor elsewhere may not be watched, from who decides on that."""
        try:
            about = parse_address(refusal.detail)
        except (InvalidAddress, TypeError):  # it came from another node
            return
        node, number, text = about.node, about.number, refusal.text
        if node is None or number is None or type(text) is not str:
            return
        if teller in (node, self._routes.router.next_hops.get(node)):
            proxy = self.proxy_of(node, number)
            if proxy is not None:
                proxy.refuse_monitors(text)
                self._pace.unanswered(proxy)

    def release_unused(self) -> None:
        """Forget proxies that nobody here holds a ref to, and tell their hosts."""
        for _ in range(len(self._gone)):
            weak = self._gone.popleft()
            node, number = weak.key
            with self._lock:
                if self._refs.get(weak.key) is not weak:
                    continue  # the ref was made again
                proxy = self._holdings.get(node, number)
                if proxy is not None and (
                    proxy.is_watched or proxy.waiting is not None or self._pace.is_owed(proxy)
                ):
                    self._gone.append(weak)
                    continue
                del self._refs[weak.key]
                sightings = self._holdings.dropped(node, number)
            if number >= FIRST_ACTOR:
                frame = pack_release(self._routes.node_id, node, number, sightings)
                self._routes.send_to(node, frame)

    # --- proxies elsewhere ---

    def take_announce(self, frame: Frame) -> None:
        """Take note that another node has a proxy; tell it at once if the actor is dead."""
        source, number = frame.source, frame.destination_actor
        if number == NODE_ACTOR:
            return  # no actor, so no frame tells of its end
        ending = self.holders.announced(source, number, frame.data, self._proxy_limit)
        if ending is not None:
            self._tell_down(source, number, *ending)
        else:
            self.lender.announced(source, number, frame.data)

    def take_release(self, frame: Frame) -> Iterator[object] | None:
        """Take note that another node has a proxy no more, or nothing that is older.

        Returns what is left to do, step by step.
        """
        source, number, sightings = frame.source, frame.destination_actor, frame.data
        if number != NODE_ACTOR:
            self.holders.released(source, number, sightings)
            self.lender.released(source, number)
            return None
        if self.holders.swept(source, sightings):
            self._runtime.call_later(OLD_PATH_LIMIT, self._settle, source)
        return _in_steps(
            _then(self.holders.sweep(source, sightings), self.lender.released, source)
        )

    def _settle(self, node: bytes) -> None:
        """Take what a node announced late for true, and tell it of the dead ones."""
        told = self.holders.settle(node, self._proxy_limit)
        self._tell_downs(node, ((number, *ending) for number, ending in told))

    def _tell_downs(self, node: bytes, downs: Iterator[tuple[int, ExitReason, str]]) -> None:
        """Tell a node of ends, so many in a turn."""
        portion = list(islice(downs, AT_ONCE))
        for down in portion:
            self._tell_down(node, *down)
        if len(portion) == AT_ONCE:
            self._runtime.call_later(0.0, self._tell_downs, node, downs)

    def _go_through(self, steps: Iterator[object] | None) -> None:
        """Do a step in this turn, and the rest in the next ones."""
        if steps is not None and next(steps, None):
            self._runtime.call_later(0.0, self._go_through, steps)

    def forget(self, node: bytes) -> None:
        """Forget the proxies that another node had."""
        self._owed.pop(node, None)
        work = _then(self.holders.node_lost(node), self.lender.lost, node)
        self._go_through(_in_steps(work))

    def actor_ended(self, cell: ActorContext, down: Down) -> None:
        """Tell the nodes that hold a proxy of an actor that it ended; from any thread."""
        self._runtime.post(self._announce_end, cell.number, down)

    def _announce_end(self, number: int, down: Down) -> None:
        """Tell the holders of an actor that it ended."""
        if number not in self.held_numbers or self._runtime.takes(number):
            return
        reason = ExitReason(down.reason)
        for node in self.holders.ended(number, reason, down.detail):
            self._tell_down(node, number, reason, down.detail)

    def _tell_down(self, node: bytes, number: int, reason: ExitReason, detail: str) -> None:
        """Tell one node that an actor here ended."""
        frame = pack_down(self._routes.node_id, number, node, reason.ordinal, detail)
        self._routes.send_to(node, frame)

    # --- paths ---

    def renew(self, node: bytes) -> None:
        """Say again what matters over a path that changed: what was said before may be lost."""
        with self._lock:
            proxies, before = self._holdings.renewed(node)
        for proxy in proxies:
            self._pace.announce(proxy)
        if before:
            frame = pack_release(self._routes.node_id, node, NODE_ACTOR, before)
            self._routes.send_to(node, frame)
        former = self._owed.get(node)
        if former is not None:
            former.close()  # it begins again
        owed = self._owed[node] = self.holders.owed(node)
        self._tell_downs(node, owed)

    def node_lost(self, node: bytes, text: str) -> None:
        """A node is out of reach: tell who watches its actors, forget what it held."""
        self.forget(node)
        for proxy in self.proxies_of(node):
            proxy.out_of_reach(text)


def _then(
    work: Iterator[object], callback: Callable[[bytes], object], node: bytes
) -> Iterator[object]:
    """Do a work step by step, and call when it is done."""
    yield from work
    callback(node)


def _in_steps(work: Iterator[object]) -> Iterator[object] | None:
    """Do a step of many parts; return the rest, None when nothing is left."""
    steps = iter(lambda: sum(1 for _ in islice(work, AT_ONCE)) == AT_ONCE, False)  # noqa: FBT003
    return steps if next(steps, False) else None
