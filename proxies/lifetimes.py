"""Proxies of one node and of its actors elsewhere: drives `proxies.holding` and `.registry`.

`remote_ref` may be called from any thread; the rest runs on the runner, with its role.

A proxy is held while somebody here has its ref. The table of refs is weak: what the garbage
collection takes away is put into a queue, and released with the next look at it. A look
finds a proxy that is watched or that messages wait in for a path, and comes back to it.
"""

import weakref
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from actors.cell import Cell
from actors.exit_reason import ExitReason
from actors.reference import ActorRef
from actors.signals import Down
from basp.control import pack_announce, pack_down, pack_release, read_down
from basp.header import FIRST_ACTOR, NODE_ACTOR
from proxies.holding import Holdings
from proxies.proxy import Proxy
from proxies.registry import HolderRegistry

if TYPE_CHECKING:
    from basp.frame import Frame
    from proxies.broker import Broker

OLD_PATH_LIMIT: Final = 5.0
"""Seconds after which nothing comes over a path that traffic has left.

By then each of its links has delivered what it held, or was found dead after three heartbeats.
"""


class _WeakRef(weakref.ref[ActorRef[Any]]):
    """A weak reference to an actor's ref, that knows which one it was."""

    __slots__ = ("key",)

    key: tuple[bytes, int]


class Lifetimes:
    """The proxies that this node holds, and those that others hold of its actors."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._runtime = broker.runtime
        self._node_id = broker.node_id
        self._outgoing = broker.outgoing
        self._lock = broker.lock
        self._refs: dict[tuple[bytes, int], _WeakRef] = {}
        #: Refs that are gone, to be released. A callback of the garbage collection may come
        #: anywhere, also where a lock is held, so all that it does is to append here.
        self._gone: deque[_WeakRef] = deque()
        self._holdings = Holdings(self._make_proxy)
        self.holders = HolderRegistry(broker.runtime.cells.__contains__)
        broker.runtime.is_number_held = self.holders.is_held

    # --- proxies here ---

    def remote_ref(self, node: bytes, number: int) -> ActorRef[Any]:
        """Return the ref of an actor elsewhere; its proxy is made, and announced, when new."""
        known = self._refs.get((node, number))
        ref = None if known is None else known()
        return self._find_or_learn(node, number) if ref is None else ref

    def _find_or_learn(self, node: bytes, number: int) -> ActorRef[Any]:
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
            self._announce(proxy)
        return ref

    def _make_proxy(self, node: bytes, number: int, sightings: int) -> Proxy:
        return Proxy(self._broker, node, number, sightings)

    def _announce(self, proxy: Proxy) -> None:
        node, number = proxy.node, proxy.number
        if number >= FIRST_ACTOR:
            frame = pack_announce(self._node_id, node, number, proxy.sightings)
            self._outgoing.send_to(node, frame)

    def proxies(self) -> list[Proxy]:
        """Return all proxies."""
        with self._lock:
            return self._holdings.all()

    def proxies_of(self, node: bytes) -> list[Proxy]:
        """Return the proxies of a node's actors."""
        with self._lock:
            return self._holdings.of(node)

    @property
    def count(self) -> int:
        """How many remote actors this node knows."""
        return len(self._refs)

    def take_down(self, frame: "Frame") -> None:
        """Take a `down_message`: an actor elsewhere ended.

        Raises:
            MalformedPayload: its payload breaks the layout.
        """
        number, reason, detail = read_down(frame)
        with self._lock:
            proxy = self._holdings.get(frame[3], number)
        if proxy is not None:
            proxy.actor_ended(ExitReason.from_ordinal(reason), detail)

    def release_unused(self) -> None:
        """Forget proxies that nobody here holds a ref to, and tell their hosts."""
        for _ in range(len(self._gone)):
            weak = self._gone.popleft()
            node, number = weak.key
            with self._lock:
                if self._refs.get(weak.key) is not weak:
                    continue  # somebody got hold of it again
                proxy = self._holdings.get(node, number)
                if proxy is not None and (proxy.is_watched or proxy.waiting is not None):
                    self._gone.append(weak)
                    continue
                del self._refs[weak.key]
                sightings = self._holdings.dropped(node, number)
            if number >= FIRST_ACTOR:
                frame = pack_release(self._node_id, node, number, sightings)
                self._outgoing.send_to(node, frame)

    # --- proxies elsewhere ---

    def take_announce(self, frame: "Frame") -> None:
        """Take note that another node has a proxy; tell it at once if the actor is dead."""
        source, number = frame[3], frame[6]
        if not self._broker.is_admitted(source):
            return
        limit = self._broker.connector.limits.proxies
        ending = self.holders.announced(source, number, frame[2], limit)
        if ending is not None:
            self._tell_down(source, number, *ending)

    def take_release(self, frame: "Frame") -> None:
        """Take note that another node has a proxy no more, or nothing that is older."""
        if frame[6] == NODE_ACTOR:
            self.holders.swept(frame[3], frame[2])
        else:
            self.holders.released(frame[3], frame[6], frame[2])

    def actor_ended(self, cell: Cell, down: Down) -> None:
        """Tell the nodes that hold a proxy of an actor that it ended; from any thread."""
        self._runtime.runner.post(self._announce_end, cell.number, down)

    def _announce_end(self, number: int, down: Down) -> None:
        reason = ExitReason(down.reason)
        for node in self.holders.ended(number, reason, down.detail):
            self._tell_down(node, number, reason, down.detail)

    def _tell_down(self, node: bytes, number: int, reason: ExitReason, detail: str) -> None:
        frame = pack_down(self._node_id, number, node, reason.ordinal, detail)
        self._outgoing.send_to(node, frame)

    # --- paths ---

    def renew(self, node: bytes) -> None:
        """Say again what matters over a path that changed: what was said before may be lost."""
        with self._lock:
            proxies, before = self._holdings.renewed(node)
        for proxy in proxies:
            self._announce(proxy)
        if before:
            frame = pack_release(self._node_id, node, NODE_ACTOR, before)
            self._outgoing.send_to(node, frame)
        for number, reason, detail in self.holders.owed(node):
            self._tell_down(node, number, reason, detail)

    def node_lost(self, node: bytes, text: str) -> None:
        """A node is out of reach: tell who watches its actors, forget what it held."""
        self.holders.node_lost(node)
        for proxy in self.proxies_of(node):
            proxy.out_of_reach(text)
