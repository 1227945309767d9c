"""Subscriptions of one endpoint: what they occupy, and how fast a topic finds them."""

import gc
import time

from benchmarks.scale import Scale, resident
from callboard.endpoint.subscriptions import SubscriptionTable

SIZES = (1, 10, 100, 1_000, 10_000, 100_000, 1_000_000)
LOOKS = 50_000


def measure(size: int) -> dict[str, float]:
    """Subscribe so many subscribers, each to a prefix of its own."""
    gc.collect()
    before = resident()
    table = SubscriptionTable[int]()
    started = time.perf_counter()
    for number in range(size):
        table.add(f"/building/{number % 997}/room/{number}", number)
    subscribed = time.perf_counter() - started
    gc.collect()
    occupied = resident() - before
    topics = [f"/building/{n % size % 997}/room/{n % size}/heat/{n}" for n in range(LOOKS)]
    started = time.perf_counter()
    for topic in topics:
        table.match(topic)
    ever_new = LOOKS / (time.perf_counter() - started)
    started = time.perf_counter()
    for _ in range(LOOKS):
        table.match(topics[-1])
    known = LOOKS / (time.perf_counter() - started)
    return {
        "subscribed/s": size / subscribed,
        "bytes a subscription": occupied / size,
        "new topics/s": ever_new,
        "known topics/s": known,
    }


SCALE = Scale(
    title="subscriptions of an endpoint",
    size="subscriptions",
    sizes=SIZES,
    run=measure,
    limit="Memory: a look-up asks one dictionary for each length of a prefix, not each prefix.",
)
