"""MQTT with QoS 0: messages of 64 bytes through a broker, in runs of 100, over loopback.

Deliveries for each second of the broker's CPU time: one publisher to one subscriber, one to
ten, ten to one. A lost message fails the run.
"""

from benchmarks.measure import Measure
from benchmarks.peers.mqtt_brokers import flow

MEASURE = Measure(
    title="MQTT, QoS 0",
    unit="deliveries/CPU-s",
    subjects=(
        *flow(0, 1, 1, callboard=1_000_000, mosquitto=300_000, amqtt=30_000),
        *flow(0, 1, 10, callboard=400_000, mosquitto=60_000, amqtt=8_000),
        *flow(0, 10, 1, callboard=100_000, mosquitto=30_000, amqtt=3_000),
    ),
)
