"""Memory of an idle MQTT connection with one subscription."""

from benchmarks.measure import Measure, Subject
from benchmarks.peers.mqtt_brokers import BROKERS, measured

COUNTS = {"callboard": 2_000, "mosquitto": 2_000, "amqtt": 1_000}


def subject(broker: str) -> Subject:
    """Return a broker that holds connections."""

    def run(share: float) -> float:
        return measured(broker, "idle", str(max(200, int(COUNTS[broker] * share))))

    against = None if broker == "callboard" else "callboard"
    return Subject(broker, run, BROKERS[broker][1], against)


MEASURE = Measure(
    title="MQTT, an idle connection",
    unit="KiB",
    subjects=tuple(subject(broker) for broker in BROKERS),
    more_is_better=False,
)
