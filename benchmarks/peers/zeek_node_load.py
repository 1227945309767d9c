"""The peer for our own wire, as `zeek_peer_load.py` is for Broker's: an endpoint.

python zeek_node_load.py feed|take EVENTS PORT
"""

import sys

from callboard.broker import BrokerOptions, Configuration, Count, Endpoint
from callboard.broker.zeek import Event

TOPIC = "/zeek/event/ping"
BATCH = 100
LIMIT = 50.0


def main() -> None:
    """Run one role."""
    role, events, port = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    plain = BrokerOptions()
    plain.disable_ssl = True
    with Endpoint(Configuration(plain)) as endpoint:
        subscriber = endpoint.make_subscriber(TOPIC if role == "take" else "/nothing")
        assert endpoint.peer("127.0.0.1", port)
        if role == "feed":
            assert endpoint.await_filter_entry(TOPIC, LIMIT)
        print("ready", flush=True)
        sys.stdin.readline()
        event = Event("Test::ping", "hello world", Count(7), "10.0.0.1")
        for _ in range(events // BATCH if role == "feed" else 0):
            endpoint.publish_batch(*[(TOPIC, event)] * BATCH)
        left = events if role == "take" else 0
        while left:
            left -= len(subscriber.get(left, LIMIT)) if left > 1 else 1
        print("done", flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
