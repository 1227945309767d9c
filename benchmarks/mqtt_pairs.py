"""MQTT with QoS 0 and nothing to merge: 50 publishers with one subscriber each.

One message in each write; deliveries per second of the broker's CPU time.
"""

from benchmarks.measure import Measure
from benchmarks.peers.mqtt_brokers import flow

MEASURE = Measure(
    title="MQTT, 50 pairs",
    unit="deliveries/CPU-s",
    subjects=(*flow(0, 50, 50, "--pairs", callboard=5_000, mosquitto=4_000, amqtt=400),),
)
