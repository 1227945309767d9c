"""Topics: publish, wait for the answer, publish again.

Two processes: each publishes under the topic that the other one subscribes to. Broker 1.4
collects messages for some milliseconds before it sends them.
"""

from benchmarks.measure import Measure, Subject
from benchmarks.peers import zeek_broker

MEASURE = Measure(
    title="topics, publish and answer",
    unit="rounds/s",
    subjects=(
        Subject(
            "callboard",
            lambda share: zeek_broker.measure(zeek_broker.OURS, "rounds", int(5_000 * share)),
        ),
        Subject(
            "Zeek Broker, Python",
            lambda share: zeek_broker.measure(zeek_broker.PEER, "rounds", int(100 * share)),
            zeek_broker.prepare,
            against="callboard",
        ),
    ),
)
