"""Subscriptions of an endpoint: their memory, and the rate of messages to them.

One subscriber has all of them, each for a separate topic; another endpoint of the same process
publishes to topics all over them, first to new topics and then to the same ones again.
"""

import gc
import time
from collections.abc import Sequence

import callboard.broker as broker
from benchmarks.processes import RunFailedError
from benchmarks.scale import Processor, Scale, each, resident

SIZES = (1, 10, 100, 1_000, 10_000, 100_000, 1_000_000)
MESSAGES = 50_000
TOPICS = 1_000
"""Topics that are published to again and again."""
BATCH = 1_000
LIMIT = 120.0

Batches = Sequence[Sequence[tuple[str, int]]]


def measure(size: int) -> dict[str, float]:
    """Subscribe to a number of topics."""
    topics = [f"/building/{number % 997}/room/{number}" for number in range(size)]
    with broker.Endpoint() as here, broker.Endpoint() as there:
        if not there.peer("127.0.0.1", here.listen("127.0.0.1", 0)):
            message = "no peer"
            raise RunFailedError(message)
        gc.collect()
        before = resident()
        started = time.perf_counter()
        with here.make_subscriber(topics) as subscriber:
            if not there.await_filter_entry(topics[-1], LIMIT):
                message = "the subscriptions did not arrive"
                raise RunFailedError(message)
            took = time.perf_counter() - started
            gc.collect()
            whole = resident()
            ever_others = batches(topics, MESSAGES)
            the_same = batches(topics, TOPICS)
            processor = Processor()
            first = published(there, subscriber, ever_others)
            again = published(there, subscriber, the_same)
            used = processor.figures()
    return {
        "messages on known topics/s": again,
        "messages on ever other topics/s": first,
        "subscribed/s": size / took,
        "bytes of the process": whole,
        **each("bytes of a subscription, both ends", whole - before, size),
        **used,
    }


def batches(topics: Sequence[str], variety: int) -> Batches:
    """Return all messages, on topics spread over the subscribed ones."""
    step = max(1, len(topics) // variety)
    chosen = [f"{topics[n * step % len(topics)]}/heat/{n}" for n in range(variety)]
    return [
        [(chosen[number % variety], number) for number in range(first, first + BATCH)]
        for first in range(0, MESSAGES, BATCH)
    ]


def published(there: broker.Endpoint, subscriber: broker.Subscriber, all_of: Batches) -> float:
    """Publish all; return how many a second the subscriber has read."""
    started = time.perf_counter()
    for batch in all_of:
        there.publish_batch(*batch)
        if len(subscriber.get(len(batch), LIMIT)) != len(batch):
            message = "messages are missing"
            raise RunFailedError(message)
    return MESSAGES / (time.perf_counter() - started)


SCALE = Scale(
    title="Subscriptions of an endpoint", size="subscriptions", sizes=SIZES, run=measure
)
