"""Topics: batches of 100 small messages, until a subscriber elsewhere has read them all.

As `topic_flood`, but each call of `publish_batch` takes a hundred values.
"""

from benchmarks.measure import Measure, Subject
from benchmarks.peers import zeek_broker

MEASURE = Measure(
    title="topics, published in batches of 100",
    unit="messages/s",
    subjects=(
        Subject(
            "callboard",
            lambda share: zeek_broker.measure(
                zeek_broker.OURS, "batches", int(200_000 * share)
            ),
        ),
        Subject(
            "Zeek Broker, Python",
            lambda share: zeek_broker.measure(zeek_broker.PEER, "batches", int(30_000 * share)),
            zeek_broker.prepare,
            against="callboard",
        ),
    ),
)
