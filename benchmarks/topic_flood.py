"""Topics: small messages published one by one, until a subscriber elsewhere has read them all.

A value is `[number, "hello"]`; the rate is their number by the time from the first publish
until the subscriber, which reads them one by one, says that it has the last. Two processes on
this machine, TCP over loopback. callboard and Broker's own Python package run the same program
(`benchmarks/peers/topic_program.py`); the C++ one does the same work.
"""

from benchmarks.measure import Measure, Subject
from benchmarks.peers import zeek_broker

MEASURE = Measure(
    title="topics, published one by one",
    unit="messages/s",
    subjects=(
        Subject(
            "callboard",
            lambda share: zeek_broker.measure(zeek_broker.OURS, "flood", int(200_000 * share)),
        ),
        Subject(
            "Zeek Broker, Python",
            lambda share: zeek_broker.measure(zeek_broker.PEER, "flood", int(30_000 * share)),
            zeek_broker.prepare,
            against="callboard",
        ),
        Subject(
            "Zeek Broker, C++",
            lambda share: zeek_broker.flood_cpp(int(100_000 * share)),
            zeek_broker.prepare_cpp,
            against="callboard",
        ),
    ),
)
