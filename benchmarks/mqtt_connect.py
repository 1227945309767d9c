"""MQTT connections: 50 at a time, up to CONNACK, for each second of the broker's CPU time."""

from benchmarks.measure import Measure, Subject
from benchmarks.peers.mqtt_brokers import BROKERS, measured

COUNTS = {"callboard": 5_000, "mosquitto": 5_000, "amqtt": 1_000}


def subject(broker: str) -> Subject:
    """Return a broker that takes connections."""

    def run(share: float) -> float:
        return measured(broker, "connect", str(max(50, int(COUNTS[broker] * share))))

    against = None if broker == "callboard" else "callboard"
    return Subject(broker, run, BROKERS[broker][1], against)


MEASURE = Measure(
    title="MQTT, connections",
    unit="connections/CPU-s",
    subjects=tuple(subject(broker) for broker in BROKERS),
)
