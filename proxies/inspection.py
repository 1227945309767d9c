"""What a node tells about itself when it is asked over the wire, and the actor that answers.

Every node that is linked may ask: a link takes the same secret or certificate as anything
else. `callboard node ps`, `top` and `drain` do.
"""

import heapq
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from callboard.actors.cell import Cell
from callboard.actors.dispatch import handler
from callboard.actors.errors import InvalidSeconds
from callboard.actors.reference import Query
from callboard.actors.seconds import seconds
from callboard.actors.supervision.supervisor import Supervisor
from callboard.actors.system_actor import SystemActor
from callboard.basp.header import FIRST_ACTOR, NODE_ACTOR
from callboard.proxies.broker import Broker
from callboard.proxies.draining import Drain
from callboard.proxies.lifetime.proxy import Proxy
from callboard.proxies.messages import DrainNode, message
from callboard.proxies.names.directory import Names
from callboard.proxies.route_table import RouteTable
from callboard.proxies.stats import LinkInfo, ReachableNode

#: Looks that are remembered for one mailbox; of more, every second one.
LOOKS: Final = 64


class Waited:
    """What the looks at the mailboxes of one node told. To be used on the node's thread."""

    def __init__(self) -> None:
        #: Cell → looks: the time, and the place in line of the last message that waited then.
        self._looks: dict[Cell, deque[tuple[float, int]]] = {}

    def look(self, cells: Iterable[Cell], now: float) -> None:
        """Look at mailboxes; those that are empty or gone are forgotten."""
        looks: dict[Cell, deque[tuple[float, int]]] = {}
        for cell in cells:
            depth, taken = cell.depth, cell.taken
            if depth and cell.keeps_order:
                seen = self._looks.get(cell, deque())
                while seen and seen[0][1] <= taken:
                    seen.popleft()
                if len(seen) == LOOKS:
                    seen = deque(list(seen)[::2])
                seen.append((now, taken + depth))
                looks[cell] = seen
        self._looks = looks

    def seconds(self, cell: Cell, now: float) -> float:
        """Return how long the first in line has waited at least; 0 where nothing is known."""
        seen = self._looks.get(cell)
        return now - seen[0][0] if seen else 0.0


#: Actors in one answer at most, about a megabyte: those with most to do.
ROWS: Final = 10_000


@message("callboard.ActorInfo")
@dataclass(frozen=True, slots=True)
class ActorInfo:
    """One actor, as others see it.

    Attributes:
        address: the text of its ref.
        actor_class: the name of its class.
        name: what it is registered as, or "".
        state: `idle`, `ready` (messages wait), `running` (in a handler), `awaiting` (its
            handler awaits something).
        depth: messages in its mailbox.
        handled: messages that its handlers were called for.
        age: seconds since it was spawned; 0 where that is not known.
        waited: seconds that its oldest message has waited at least; see
            `callboard.proxies.inspection`.
        parent: the text of the ref of the actor that spawned it, or "": its supervisor, if
            it has one.
        restarts: how often that one started it again.
    """

    address: str
    actor_class: str
    name: str
    state: str
    depth: int
    handled: int
    age: float
    waited: float = 0.0
    parent: str = ""
    restarts: int = 0


@message("callboard.Inspection")
@dataclass(frozen=True, slots=True)
class Inspection:
    """What a node tells about itself.

    Attributes:
        name: of the node.
        uptime: seconds since it was made.
        actors: those with the deepest mailboxes first, then those that handled most.
        actor_count: how many there are; `actors` may hold fewer.
        handled: messages handled since the start.
        dead_letters: messages to actors that had ended.
        links: to neighbors.
        nodes: in reach.
        is_draining: whether it is about to close.
        overflows: messages that full mailboxes dropped or refused.
        expired: asks whose time was over before their turn.
        slow_handlers: handlers that held their thread for more than a second.
        waiting: messages in all mailboxes.
        handler_seconds: time in handlers since the start by class, sampled.
        neighbours: the links; only with `system`.
        routes: the nodes in reach, and the neighbor that leads there; only with `system`.
        restarts: children that supervisors started again.
        exhausted: supervisors that gave up.
    """

    name: str
    uptime: float
    actors: list[ActorInfo]
    actor_count: int
    handled: int
    dead_letters: int
    links: int
    nodes: int
    is_draining: bool
    overflows: int = 0
    expired: int = 0
    slow_handlers: int = 0
    waiting: int = 0
    handler_seconds: dict[str, float] = field(default_factory=dict)
    neighbours: list[LinkInfo] = field(default_factory=list)
    routes: list[ReachableNode] = field(default_factory=list)
    restarts: int = 0
    exhausted: int = 0


@message("callboard.Inspect")
@dataclass(frozen=True, slots=True)
class Inspect(Query[Inspection]):
    """To an inspector: what is going on? With `system` also the node's own parts."""

    limit: int = ROWS
    system: bool = False


message("callboard.LinkInfo")(LinkInfo)
message("callboard.ReachableNode")(ReachableNode)


class Inspector(SystemActor):
    """Answers `Inspect` and carries out `DrainNode`."""

    def __init__(self, broker: Broker, names: Names, drain: Drain) -> None:
        self._broker = broker
        self._names = names
        self._drain = drain
        self._since = self.now()
        self._waited = Waited()

    @handler
    def inspect(self, question: Inspect) -> Inspection:
        """Describe the node and its actors."""
        broker = self._broker
        runtime = broker.runtime
        names = {ref.actor_id: name for name, ref in self._names.items()}
        cells = list(runtime.contexts.values())
        actors = [cell for cell in cells if cell.number >= FIRST_ACTOR]
        limit = max(0, min(int(question.limit), ROWS))
        chosen = heapq.nlargest(limit, actors, lambda cell: (cell.depth, cell.handled))
        now = runtime.now()
        self._waited.look(actors, now)
        rows = [
            _row(cell, names.get(cell.number, ""), now, self._waited.seconds(cell, now))
            for cell in chosen
        ]
        if question.system is True:
            rows += self._parts_of_the_node(cells, now, limit)
        return Inspection(
            name=self.node.name,
            uptime=now - self._since,
            actors=rows,
            actor_count=len(actors),
            handled=runtime.handled,
            dead_letters=runtime.counters.dead_letters,
            links=len(broker.routes.wires),
            nodes=len(broker.routes.router.reachable),
            is_draining=self._names.are_withdrawn,
            overflows=runtime.counters.overflows,
            expired=runtime.counters.expired,
            slow_handlers=runtime.counters.slow_handlers,
            waiting=sum(cell.depth for cell in actors),
            handler_seconds=runtime.handler_seconds,
            restarts=runtime.counters.restarts,
            exhausted=runtime.counters.exhausted,
            neighbours=self.node.links()[:ROWS] if question.system is True else [],
            routes=self.node.nodes()[:ROWS] if question.system is True else [],
        )

    def _parts_of_the_node(
        self, cells: Sequence[Cell], now: float, limit: int
    ) -> list[ActorInfo]:
        """Describe the actors that every node has, its broker and its proxies."""
        rows = [_row(cell, "", now) for cell in cells if cell.number < FIRST_ACTOR]
        frames = sum(wire.frames_received for wire in list(self._broker.routes.wires.values()))
        text = self._broker.routes.ref_text(self.runtime.node_id, NODE_ACTOR)
        rows.append(ActorInfo(text, "Broker", "", "running", self._broker.awaited, frames, 0.0))
        proxies = self._broker.lifetimes.proxies()[:limit]
        return rows + [_proxy_row(proxy, self._broker.routes) for proxy in proxies]

    @handler
    async def drain(self, request: DrainNode) -> None:
        """Drain the node, answer with the report, and close it."""
        promise = self.promise()
        try:
            limit = seconds(request.timeout)
        except InvalidSeconds as error:  # it came from another node
            promise.set_exception(error)
            return
        report = await self._drain.adrain(limit)
        promise.set_result(report)
        self.node.close()


def _row(cell: Cell, name: str, now: float, waited: float = 0.0) -> ActorInfo:
    """Describe one actor."""
    above = cell.parent
    supervisor = above.actor if above is not None else None
    return ActorInfo(
        address=str(cell.ref),
        actor_class=type(cell.actor).__qualname__,
        name=name,
        state=cell.activity,
        depth=cell.depth,
        handled=cell.handled,
        age=max(0.0, now - cell.born),
        waited=waited,
        parent="" if above is None else str(above.ref),
        restarts=supervisor.restarts_of(cell.ref) if isinstance(supervisor, Supervisor) else 0,
    )


def _proxy_row(proxy: Proxy, routes: RouteTable) -> ActorInfo:
    """Describe one remote actor."""
    waiting = len(proxy.waiting or ())
    return ActorInfo(
        address=routes.ref_text(proxy.node, proxy.number),
        actor_class="Proxy",
        name=routes.names.get(proxy.node, ""),
        state="ready" if waiting else "idle",
        depth=waiting,
        handled=0,
        age=0.0,
    )
