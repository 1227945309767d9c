"""The overseer on A: monitors the aggregator and all sensors over several hops, and recovers.

Its reactions:

- a node becomes reachable: find its sensors by name, monitor them, send them the aggregator;
- the aggregator goes down: spawn another one on the best reachable node, and notify all
  reachable sensors;
- a sensor goes down: forget it until its node is reachable again.

At the start, the overseer waits a moment for the preferred node; later it does not wait.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from callboard.demo.aggregator import Aggregator, UseAggregator
from callboard.demo.sensor import Note, Rest
from callboard.kernel.actors import Actor, ActorRef, Down, handler
from callboard.kernel.errors import CallboardError

#: Preferred nodes for the aggregator, best first; the overseer's own node is the last resort.
PREFERRED: Final = ("C", "B")

#: Seconds to wait for the preferred node at the start.
GRACE: Final = 3.0

#: Seconds until the search for unregistered sensors is repeated.
RETRY: Final = 0.1


@dataclass(frozen=True, slots=True)
class NodeAppeared:
    """A node became reachable."""

    name: str


@dataclass(frozen=True, slots=True)
class Reconsider:
    """The time to wait for the preferred node is over."""


@dataclass(frozen=True, slots=True)
class FindSensors:
    """Asks the overseer to find the sensors of a node."""

    node: str


def choose_hosts(in_reach: Collection[str], *, is_patient: bool) -> tuple[str, ...]:
    """Return the nodes to try for the aggregator, best first; if `is_patient`, only the best.

    Pure: `choose_hosts({"B", "D"}, is_patient=False)` is `("B",)`.
    """
    candidates = PREFERRED[:1] if is_patient else PREFERRED
    return tuple(name for name in candidates if name in in_reach)


class Overseer(Actor):
    """Keeps one aggregator alive and all sensors pointed at it."""

    def __init__(
        self,
        note: Note,
        local_sensors: Mapping[str, ActorRef],
        remote_sensors: Mapping[str, Sequence[str]],
    ) -> None:
        """Create the overseer; `remote_sensors` has the registered names by node."""
        self._note = note
        self._remote_sensors = remote_sensors
        self._sensors: dict[str, ActorRef] = {}
        self._aggregator: ActorRef | None = None
        self._host = ""
        self._is_patient = True
        self._is_resting = False
        for name, ref in local_sensors.items():
            self._adopt(name, ref)
        self.after(GRACE, Reconsider())

    @handler
    async def on_node_appeared(self, event: NodeAppeared) -> None:
        """Spawn an aggregator if there is none, and connect the sensors of the node."""
        await self._ensure_aggregator()
        await self.on_find_sensors(FindSensors(event.name))

    @handler
    async def on_reconsider(self, _: Reconsider) -> None:
        """Stop waiting for the preferred node."""
        self._is_patient = False
        await self._ensure_aggregator()

    @handler
    async def on_find_sensors(self, order: FindSensors) -> None:
        """Find the sensors of a node by name, monitor them, and send them the aggregator."""
        missing = [
            name
            for name in self._remote_sensors.get(order.node, ())
            if name not in self._sensors
        ]
        if not missing or order.node not in self._in_reach():
            return
        searches = [(name, self.node.find(name)) for name in missing]
        count = 0
        for name, search in searches:
            try:
                self._adopt(name, await search)
            except CallboardError:
                continue  # not registered yet, or lost again; retried below
            count += 1
        if count:
            self._note("sensors_found", node=order.node, count=count)
            self._point_sensors([name for name, _ in searches])
        if count < len(missing) and not self._is_resting:
            self.after(RETRY, order)

    @handler
    async def on_down(self, down: Down) -> None:
        """Replace a lost aggregator; remove a lost sensor."""
        if down.ref == self._aggregator:
            self._note("aggregator_down", host=self._host, reason=str(down.reason))
            self._aggregator = None
            await self._ensure_aggregator()
            return
        for name, ref in list(self._sensors.items()):
            if ref == down.ref:
                del self._sensors[name]
                self._note("sensor_down", sensor=name, reason=str(down.reason))

    @handler
    def on_rest(self, _: Rest) -> None:
        """Stop recovering, because the demo is about to settle its accounts."""
        self._is_resting = True

    def _in_reach(self) -> dict[str, bytes]:
        """Return the reachable nodes by name."""
        return {route.name: route.node_id for route in self.node.nodes()}

    def _adopt(self, name: str, ref: ActorRef) -> None:
        """Monitor a sensor."""
        self._sensors[name] = ref
        self.monitor(ref)

    async def _ensure_aggregator(self) -> None:
        """Spawn an aggregator on the best reachable node, unless there is one."""
        if self._aggregator is not None or self._is_resting:
            return
        in_reach = self._in_reach()
        for name in choose_hosts(in_reach, is_patient=self._is_patient):
            try:
                ref = await self.node.aremote_spawn(in_reach[name], "aggregator", self.me)
            except CallboardError as error:
                self._note("spawn_failed", host=name, reason=str(error))
                continue
            self._serve(name, ref)
            return
        if not self._is_patient:
            # Not a child of this actor, so that it ends by its own monitor as on other nodes.
            self._serve(self.node.name, self.node.spawn(Aggregator, self.me))

    def _serve(self, host: str, ref: ActorRef) -> None:
        """Monitor an aggregator, and point all sensors at it."""
        self._aggregator, self._host = ref, host
        self._is_patient = False
        self.monitor(ref)
        self._note("spawned", host=host)
        self._point_sensors(list(self._sensors))

    def _point_sensors(self, names: Sequence[str]) -> None:
        """Point sensors at the aggregator."""
        if self._aggregator is None:
            return
        order = UseAggregator(self._aggregator, self.me)
        for name in names:
            if name in self._sensors:
                self._sensors[name].tell(order)
