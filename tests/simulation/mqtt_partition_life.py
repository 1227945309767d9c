"""One random life of a cluster of MQTT routers whose nodes lose each other, by seed.

Routers forget other routers that are unreachable or down, as nodes do when another one is So a
client may begin anew here while its session is there. When the partition is over and clients
have connected again, each has one session, at one router.
"""

import random

from callboard.mqtt.wire.packet import ConnAck
from callboard.simulation import Cluster, cluster_test, sometimes
from tests.simulation.mqtt_client import SimulatedClient
from tests.simulation.mqtt_cluster_life import MqttClusterLife
from tests.simulation.mqtt_cluster_router import ClusterRouter
from tests.simulation.rules import Violation


class MqttPartitionLife(MqttClusterLife):
    """A life in which nodes are lost, and found again."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        self._rests = 0

    def _make_client(self, name: str, version: int, chance: random.Random) -> SimulatedClient:
        return ForgivingClient(name, version, chance, lambda: self.ticks)

    def _others(self, router: ClusterRouter) -> list[ClusterRouter]:
        return [
            each
            for each in super()._others(router)
            if each.is_up and frozenset((each.number, router.number)) not in self._cut
        ]

    def _is_at_rest(self) -> bool:
        """Connect every client twice more: each time it finds its earlier session."""
        if not super()._is_at_rest():
            return False
        self._rests += 1
        for client in self.clients if self._rests <= 2 else ():
            client.lose()
        return self._rests > 2

    def _check_always(self) -> None:
        """Check nothing: while routers are apart, each may have a session of a client."""

    def _check_end(self) -> None:
        self._check_retained()
        for client in self.clients:
            assert isinstance(client, ForgivingClient)
            sometimes(client.begun_anew, "a client begins anew")
            owners = [each.number for each in self.routers if each.owns(client.name)]
            copies = [
                each.number
                for each in self.routers
                if client.name in each.machine.sessions.adopted
            ]
            if len(owners) != 1 or copies:
                raise Violation(f"{client.name} is owned by {owners}, with copies at {copies}")


class ForgivingClient(SimulatedClient):
    """A client that begins anew when its session is not there."""

    begun_anew = 0

    def _begin(self, packet: ConnAck) -> None:
        if self.has_session and not packet.session_present:
            self.begun_anew += 1
            self.has_session = False
            self.session.outgoing.clear()
            self.session.received.clear()
        super()._begin(packet)


@cluster_test
def live_mqtt_partition(cluster: Cluster) -> None:
    """Live a life of MQTT routers that lose each other."""
    MqttPartitionLife(cluster).run()
