"""The overseer on A: watches the aggregator and all sensors across the hops, and heals.

What it does about each event:

- a node comes in reach: its sensors are found by name, monitored, and told the aggregator;
- the aggregator goes down: another one is spawned on the best node in reach, and every sensor
  in reach is told;
- a sensor goes down: it is forgotten until its node comes in reach again.

At the start the first choice gets a moment to appear; later nobody is waited for.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from callboard.demo.aggregator import Aggregator, UseAggregator
from callboard.demo.sensor import Note, Rest
from callboard.kernel.actors import Actor, ActorRef, Down, handler
from callboard.kernel.errors import CallboardError

#: Where the aggregator should live, best first; the overseer's own node is the last resort.
PREFERRED: Final = ("C", "B")

#: Seconds that the first choice has to appear at the start.
GRACE: Final = 3.0

#: Seconds until sensors that were not registered yet are looked for again.
RETRY: Final = 0.1


@dataclass(frozen=True, slots=True)
class NodeAppeared:
    """A node came in reach."""

    name: str


@dataclass(frozen=True, slots=True)
class Reconsider:
    """The first choice had its time to appear."""


@dataclass(frozen=True, slots=True)
class FindSensors:
    """Look for the sensors of a node (again)."""

    node: str


def choose_hosts(in_reach: Collection[str], *, is_patient: bool) -> tuple[str, ...]:
    """Return the nodes to try for the aggregator, best first; while patient only the very best.

    Pure: `choose_hosts({"B", "D"}, is_patient=False)` is `("B",)`.
    """
    wanted = PREFERRED[:1] if is_patient else PREFERRED
    return tuple(name for name in wanted if name in in_reach)


class Overseer(Actor):
    """Keeps one aggregator alive and all sensors pointed at it."""

    def __init__(
        self,
        note: Note,
        local_sensors: Mapping[str, ActorRef[Any]],
        remote_sensors: Mapping[str, Sequence[str]],
    ) -> None:
        """`remote_sensors` names, for each other node, the actors that are registered there."""
        self._note = note
        self._remote_sensors = remote_sensors
        self._sensors: dict[str, ActorRef[Any]] = {}
        self._aggregator: ActorRef[Any] | None = None
        self._host = ""
        self._is_patient = True
        self._is_resting = False
        for name, ref in local_sensors.items():
            self._adopt(name, ref)
        self.after(GRACE, Reconsider())

    @handler
    async def on_node_appeared(self, event: NodeAppeared) -> None:
        """Give the node its part: the aggregator, or word of where it is."""
        await self._ensure_aggregator()
        await self.on_find_sensors(FindSensors(event.name))

    @handler
    async def on_reconsider(self, _: Reconsider) -> None:
        """Wait no longer for the first choice."""
        self._is_patient = False
        await self._ensure_aggregator()

    @handler
    async def on_find_sensors(self, order: FindSensors) -> None:
        """Find the sensors of a node by name, watch them, and tell them the aggregator."""
        wanted = [
            name
            for name in self._remote_sensors.get(order.node, ())
            if name not in self._sensors
        ]
        if not wanted or order.node not in self._in_reach():
            return
        searches = [(name, self.node.find(name)) for name in wanted]
        found = 0
        for name, search in searches:
            try:
                self._adopt(name, await search)
            except CallboardError:
                continue  # not registered yet, or lost again: the retry finds out
            found += 1
        if found:
            self._note("sensors_found", node=order.node, count=found)
            self._tell_sensors([name for name, _ in searches])
        if found < len(wanted) and not self._is_resting:
            self.after(RETRY, order)

    @handler
    async def on_down(self, down: Down) -> None:
        """Replace a lost aggregator; forget a lost sensor."""
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
        """Heal nothing more: the demo is about to settle its accounts."""
        self._is_resting = True

    def _in_reach(self) -> dict[str, bytes]:
        """Return the nodes in reach, by name."""
        return {known.name: known.node_id for known in self.node.nodes()}

    def _adopt(self, name: str, ref: ActorRef[Any]) -> None:
        """Watch a sensor."""
        self._sensors[name] = ref
        self.monitor(ref)

    async def _ensure_aggregator(self) -> None:
        """Spawn an aggregator on the best node, unless there is one."""
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
            # Not a child of this actor: it ends by its own monitor, as it does elsewhere.
            self._serve(self.node.name, self.node.spawn(Aggregator, self.me))

    def _serve(self, host: str, ref: ActorRef[Any]) -> None:
        """Watch an aggregator, and point all sensors at it."""
        self._aggregator, self._host = ref, host
        self._is_patient = False
        self.monitor(ref)
        self._note("spawned", host=host)
        self._tell_sensors(list(self._sensors))

    def _tell_sensors(self, names: Sequence[str]) -> None:
        """Point sensors at the aggregator."""
        if self._aggregator is None:
            return
        order = UseAggregator(self._aggregator, self.me)
        for name in names:
            if name in self._sensors:
                self._sensors[name].tell(order)
