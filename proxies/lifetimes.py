"""Proxies of one node and of its actors elsewhere: announce, release and down.

`remote_ref` may be called from any thread; the rest runs on the runner, with its role.
"""

import sys
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from actors.cell import Cell
from actors.exit_reason import ExitReason
from actors.reference import ActorRef
from actors.signals import Down
from basp.control import pack_announce, pack_down, pack_release, read_down
from basp.header import FIRST_ACTOR
from proxies.proxy import Proxy
from proxies.registry import HolderRegistry

if TYPE_CHECKING:
    from basp.frame import Frame
    from proxies.broker import Broker

_REFS_OF_OUR_OWN: Final = 3
"""Counted references to a ref that only `release_unused` holds: list, variable, argument."""

OLD_PATH_LIMIT: Final = 5.0
"""Seconds after which nothing comes over a path that traffic has left.

By then each of its links has delivered what it held, or was found dead after three heartbeats.
"""

RECENT_DOWNS: Final = 10_000
"""Down messages kept for being told again; more than end in a few seconds on a sane node."""


class Lifetimes:
    """The proxies that this node holds, and those that others hold of its actors."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._runtime = broker.runtime
        self._node_id = broker.node_id
        self._outgoing = broker.outgoing
        self._lock = broker.lock
        self._refs: dict[tuple[bytes, int], ActorRef[Any]] = {}
        self.holders = HolderRegistry(broker.runtime.cells.__contains__)
        #: Down messages of the last seconds, to be told again when their path moves.
        self._recent_downs: deque[tuple[float, bytes, bytes]] = deque(maxlen=RECENT_DOWNS)

    # --- proxies here ---

    def remote_ref(self, node: bytes, number: int) -> ActorRef[Any]:
        """Return the ref of an actor elsewhere; its proxy is made, and announced, when new."""
        ref = self._refs.get((node, number))
        if ref is None:
            with self._lock:
                ref = self._refs.get((node, number))
                if ref is not None:
                    return ref
                proxy = Proxy(self._broker, node, number)
                ref = self._refs[node, number] = ActorRef(self._runtime, node, number, proxy)
            if number >= FIRST_ACTOR:
                self._outgoing.send_to(node, pack_announce(self._node_id, node, number))
        return ref

    def proxies(self) -> list[Proxy]:
        """Return all proxies."""
        return [
            ref.target for ref in list(self._refs.values()) if isinstance(ref.target, Proxy)
        ]

    def proxies_of(self, node: bytes) -> list[Proxy]:
        """Return the proxies of a node's actors."""
        return [proxy for proxy in self.proxies() if proxy.node == node]

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
        ref = self._refs.get((frame[3], number))
        if ref is not None and isinstance(ref.target, Proxy):
            ref.target.ended(ExitReason.from_ordinal(reason), detail)

    def release_unused(self) -> None:
        """Forget proxies that nobody here holds a ref to, and tell their hosts."""
        for key, ref in list(self._refs.items()):
            node, number = key
            proxy = ref.target
            if not isinstance(proxy, Proxy) or proxy.is_watched or proxy.waiting:
                continue
            with self._lock:  # out of the table first: then nobody can get hold of it any more
                self._refs.pop(key, None)
                is_held = sys.getrefcount(ref) > _REFS_OF_OUR_OWN or proxy.is_watched
                if is_held:
                    self._refs[key] = ref
            if not is_held and number >= FIRST_ACTOR and proxy.down is None:
                self._outgoing.send_to(node, pack_release(self._node_id, node, number, 1))

    # --- proxies elsewhere ---

    def take_announce(self, frame: "Frame") -> None:
        """Take note that another node has a proxy; tell it at once if the actor is dead."""
        source, number = frame[3], frame[6]
        limit, detail = self._broker.connector.limits.proxies, ""
        if self.holders.count(source) >= limit:
            reason, detail = ExitReason.UNREACHABLE, f"the node holds {limit:,} proxies already"
        elif self.holders.announced(source, number):
            return
        else:
            reason = ExitReason.NOT_FOUND
        down = pack_down(self._node_id, number, source, reason.ordinal, detail)
        self._outgoing.send_to(source, down)

    def take_release(self, frame: "Frame") -> None:
        """Take note that another node has a proxy no more."""
        self.holders.released(frame[3], frame[6])

    def actor_ended(self, cell: Cell, down: Down) -> None:
        """Tell the nodes that hold a proxy of an actor that it ended; from any thread."""
        self._runtime.runner.post(self._announce_end, cell.number, down)

    def _announce_end(self, number: int, down: Down) -> None:
        reason = ExitReason(down.reason).ordinal
        for node in self.holders.ended(number):
            frame = pack_down(self._node_id, number, node, reason, down.detail)
            self._recent_downs.append((self._runtime.runner.now(), node, frame))
            self._outgoing.send_to(node, frame)

    # --- paths ---

    def renew(self, node: bytes) -> None:
        """Announce our proxies again, and tell again which actors ended: both may be lost."""
        for proxy in self.proxies_of(node):
            if proxy.number >= FIRST_ACTOR and proxy.down is None:
                frame = pack_announce(self._node_id, node, proxy.number)
                self._outgoing.send_to(node, frame)
        since = self._runtime.runner.now() - OLD_PATH_LIMIT
        for at, told, frame in list(self._recent_downs):
            if told == node and at >= since:
                self._outgoing.send_to(node, frame)

    def node_lost(self, node: bytes) -> None:
        """Forget what a node held that is out of reach."""
        self.holders.node_lost(node)
