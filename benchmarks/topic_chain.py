"""Topics: three nodes in a chain, the one in the middle only forwards.

As `topic_flood`, with another process between publisher and subscriber. Broker 1.4 has to be
told there what to forward; callboard passes runs of messages on undecoded.
"""

from benchmarks.measure import Measure, Subject
from benchmarks.peers import zeek_broker

MEASURE = Measure(
    title="topics over three nodes in a chain",
    unit="messages/s",
    subjects=(
        Subject(
            "callboard",
            lambda share: zeek_broker.measure(
                zeek_broker.OURS, "flood", int(200_000 * share), relays=1
            ),
        ),
        Subject(
            "Zeek Broker, Python",
            lambda share: zeek_broker.measure(
                zeek_broker.PEER, "flood", int(30_000 * share), relays=1
            ),
            zeek_broker.prepare,
            against="callboard",
        ),
    ),
)
