"""MQTT with QoS 1: messages of 64 bytes through a broker, in runs of 100, over loopback.

Deliveries for each second of the broker's CPU time: one publisher to one subscriber, one to
ten, ten to one. A lost message fails the run.
"""

from benchmarks.measure import Measure
from benchmarks.peers.mqtt_brokers import flow

MEASURE = Measure(
    title="MQTT, QoS 1",
    unit="deliveries/CPU-s",
    subjects=(
        *flow(1, 1, 1, callboard=300_000, mosquitto=150_000, amqtt=15_000),
        *flow(1, 1, 10, callboard=100_000, mosquitto=30_000, amqtt=4_000),
        *flow(1, 10, 1, callboard=30_000, mosquitto=15_000, amqtt=1_500),
    ),
)
