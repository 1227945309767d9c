"""MQTT with QoS 2: messages of 64 bytes through a broker, in runs of 100, over loopback.

Deliveries for each second of the broker's CPU time: one publisher to one subscriber, one to
ten, ten to one. A lost message fails the run.
"""

from benchmarks.measure import Measure
from benchmarks.peers.mqtt_brokers import flow

MEASURE = Measure(
    title="MQTT, QoS 2",
    unit="deliveries/CPU-s",
    subjects=(
        *flow(2, 1, 1, callboard=100_000, mosquitto=60_000, amqtt=8_000),
        *flow(2, 1, 10, callboard=30_000, mosquitto=15_000, amqtt=2_000),
        *flow(2, 10, 1, callboard=10_000, mosquitto=6_000, amqtt=800),
    ),
)
