"""Remote references: proxies on this node, and proxies of its actors on other nodes.

This class is the driver of both tables. `remote_ref` may be called from any thread; all other
methods run on the thread with the runner's role.

A proxy is kept while a ref to it is in use on this node. The table of refs holds only weak
references. When the garbage collector removes a ref, the ref is queued, and the housekeeping of
the next second releases its proxy. If the proxy still has watchers or waiting messages,
housekeeping tries again a second later.
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

#: Proxies of one node that are processed in one turn, as there may be a million.
AT_ONCE: Final = 256


class _WeakRef(weakref.ref[ActorRef]):
    """A weak reference to a ref, with the node and number of the ref's actor."""

    __slots__ = ("key",)

    key: tuple[bytes, int]


class Pace(Protocol):
    """Creates proxies, with credit for bounded mailboxes on other nodes."""

    def make(self, node: bytes, number: int, sightings: int, /) -> Proxy:
        """Create a proxy; the caller must hold the lock."""

    def announce(self, proxy: Proxy, /) -> None:
        """Announce a proxy to the host of its actor."""

    def unanswered(self, proxy: Proxy, /) -> None:
        """Handle the refusal of an announce: the host will not report any bounds."""

    def is_owed(self, proxy: Proxy, /) -> bool:
        """Return whether messages were sent before the bounds of the mailbox were known."""

    def lose(self, proxy: Proxy, /) -> None:
        """Drop the messages that wait for an actor that ended."""


class CreditLender(Protocol):
    """Grants credit for the bounded mailboxes of this node."""

    def announced(self, node: bytes, number: int, sightings: int, /) -> None:
        """Send the credit of an actor to a node that announced a proxy of it."""

    def released(self, node: bytes, number: int = NODE_ACTOR, /) -> None:
        """Withdraw the credit of a node for an actor, or all actors, without a proxy there."""

    def lost(self, node: bytes, /) -> None:
        """Withdraw the credit of a node that is out of reach."""

    def hosting_of(self, number: int, /) -> Any:
        """Return the hosting record of an actor; None with an unbounded mailbox."""


class Lifetimes:
    """The proxies held by this node, and the proxies of its actors on other nodes."""

    #: Grants credit to nodes that hold proxies.
    lender: CreditLender

    def __init__(
        self, runtime: Runtime, routes: RouteTable, pace: Pace, proxy_limit: int
    ) -> None:
        """Start without proxies.

        Args:
            runtime: the runtime of the node.
            routes: the routes to other nodes.
            pace: creates the proxies.
            proxy_limit: number of proxies of this node's actors that one other node may hold.
        """
        self._runtime = runtime
        self._routes = routes
        self._proxy_limit = proxy_limit
        self._lock = routes.lock
        self._refs: dict[tuple[bytes, int], _WeakRef] = {}
        #: Collected refs whose proxies have to be released. The garbage collector may call its
        #: callback at any point, even while a lock is held, so the callback only appends to
        #: this queue.
        self._gone: deque[_WeakRef] = deque()
        self._pace = pace
        self._holdings = RemoteRefs(pace.make)
        self._holdings.sightings = KNOWS_CREDIT
        self.holders = HolderRegistry(runtime.takes)
        self.held_numbers: Container[int] = self.holders.numbers
        #: For each node the ends of actors that are being reported to it again.
        self._owed: dict[bytes, Generator[tuple[int, ExitReason, str], None, None]] = {}

    def ref_text(self, node: bytes, number: int) -> str:
        """Return a ref's text, with an address if the node is known to listen at one."""
        return self._routes.ref_text(node, number)

    def is_reachable(self, node: bytes) -> bool:
        """Return whether a path leads to another node."""
        return self._routes.has_path(NodeId(node))

    def hosting_of(self, number: int) -> Any:
        """Return the hosting record of an actor; None with an unbounded mailbox."""
        return self.lender.hosting_of(number)

    # --- proxies here ---

    def remote_ref(self, node: bytes, number: int) -> ActorRef:
        """Return the ref of a remote actor; create and announce its proxy if it is new."""
        weak = self._refs.get((node, number))
        ref = None if weak is None else weak()
        return self._find_or_add(node, number) if ref is None else ref

    def _find_or_add(self, node: bytes, number: int) -> ActorRef:
        """Return the ref of a remote actor; create its proxy if there is none."""
        key = (node, number)
        with self._lock:
            former = self._refs.get(key)
            ref = None if former is None else former()
            if ref is not None:
                return ref
            proxy = self._holdings.get(node, number)
            is_new = proxy is None
            if proxy is None:
                proxy = self._holdings.add(node, number)
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
        """Number of remote actors known to this node."""
        return len(self._refs)

    def on_down(self, frame: Frame) -> None:
        """Handle a `down_message`: a remote actor ended.

        Raises:
            MalformedPayload: the frame's payload breaks the layout.
        """
        number, reason, detail = read_down(frame)
        proxy = self.proxy_of(frame.source, number)
        if proxy is not None:
            proxy.actor_ended(ExitReason.from_ordinal(reason), detail)
            if proxy.waiting is not None:
                self._pace.lose(proxy)

    def refuse_monitors(self, teller: bytes, refusal: Failure) -> None:
        """Apply a refusal of monitors for an actor, if its sender is the actor's node."""
        try:
            about = parse_address(refusal.detail)
        except (InvalidAddress, TypeError):  # malformed data of another node
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
        """Remove the proxies whose refs were collected, and send releases to their hosts."""
        for _ in range(len(self._gone)):
            weak = self._gone.popleft()
            node, number = weak.key
            with self._lock:
                if self._refs.get(weak.key) is not weak:
                    continue  # the ref was created again
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

    # --- proxies on other nodes ---

    def on_announce(self, frame: Frame) -> None:
        """Handle an announce of a proxy; report the end at once if the actor is dead."""
        source, number = frame.source, frame.destination_actor
        if number == NODE_ACTOR:
            return  # the node itself is not an actor, and its end is never reported
        ending = self.holders.announced(source, number, frame.data, self._proxy_limit)
        if ending is not None:
            self._report_down(source, number, *ending)
        else:
            self.lender.announced(source, number, frame.data)

    def on_release(self, frame: Frame) -> Iterator[object] | None:
        """Handle the release of a proxy, or of all proxies up to some sightings.

        Returns the remaining steps, or None.
        """
        source, number, sightings = frame.source, frame.destination_actor, frame.data
        if number != NODE_ACTOR:
            self.holders.released(source, number, sightings)
            self.lender.released(source, number)
            return None
        if self.holders.swept(source, sightings):
            self._runtime.call_later(OLD_PATH_LIMIT, self._settle, source)
        return _in_steps(
            _with_callback(self.holders.sweep(source, sightings), self.lender.released, source)
        )

    def _settle(self, node: bytes) -> None:
        """Accept the late announces of a node, and report to it which actors are dead."""
        endings = self.holders.settle(node, self._proxy_limit)
        self._report_downs(node, ((number, *ending) for number, ending in endings))

    def _report_downs(self, node: bytes, downs: Iterator[tuple[int, ExitReason, str]]) -> None:
        """Report ends of actors to a node, a portion in each turn."""
        portion = list(islice(downs, AT_ONCE))
        for down in portion:
            self._report_down(node, *down)
        if len(portion) == AT_ONCE:
            self._runtime.call_later(0.0, self._report_downs, node, downs)

    def _run_steps(self, steps: Iterator[object] | None) -> None:
        """Do a step in this turn, and the rest in the next ones."""
        if steps is not None and next(steps, None):
            self._runtime.call_later(0.0, self._run_steps, steps)

    def forget(self, node: bytes) -> None:
        """Forget the proxies of a node."""
        self._owed.pop(node, None)
        work = _with_callback(self.holders.node_lost(node), self.lender.lost, node)
        self._run_steps(_in_steps(work))

    def actor_ended(self, cell: ActorContext, down: Down) -> None:
        """Report the end of an actor to the nodes with a proxy of it.

        Can be called from any thread.
        """
        self._runtime.post(self._announce_end, cell.number, down)

    def _announce_end(self, number: int, down: Down) -> None:
        """Report the end of an actor to its holders."""
        if number not in self.held_numbers or self._runtime.takes(number):
            return
        reason = ExitReason(down.reason)
        for node in self.holders.ended(number, reason, down.detail):
            self._report_down(node, number, reason, down.detail)

    def _report_down(self, node: bytes, number: int, reason: ExitReason, detail: str) -> None:
        """Report the end of an actor to one node."""
        frame = pack_down(self._routes.node_id, number, node, reason.ordinal, detail)
        self._routes.send_to(node, frame)

    # --- paths ---

    def renew(self, node: bytes) -> None:
        """Send announces and ends again on a changed path, because earlier ones may be lost."""
        with self._lock:
            proxies, released_up_to = self._holdings.renewed(node)
        for proxy in proxies:
            self._pace.announce(proxy)
        if released_up_to:
            frame = pack_release(self._routes.node_id, node, NODE_ACTOR, released_up_to)
            self._routes.send_to(node, frame)
        former = self._owed.get(node)
        if former is not None:
            former.close()  # the new generator starts from the beginning
        owed = self._owed[node] = self.holders.owed(node)
        self._report_downs(node, owed)

    def node_lost(self, node: bytes, text: str) -> None:
        """Notify the watchers of actors on a lost node, and forget its proxies here."""
        self.forget(node)
        for proxy in self.proxies_of(node):
            proxy.report_unreachable(text)


def _with_callback(
    work: Iterator[object], callback: Callable[[bytes], object], node: bytes
) -> Iterator[object]:
    """Yield the steps of a task, then call back."""
    yield from work
    callback(node)


def _in_steps(work: Iterator[object]) -> Iterator[object] | None:
    """Do one portion of a task; return the rest, None if nothing is left."""
    steps = iter(lambda: sum(1 for _ in islice(work, AT_ONCE)) == AT_ONCE, False)  # noqa: FBT003
    return steps if next(steps, False) else None
