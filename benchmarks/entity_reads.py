"""Read-only asks of entities in four processes, with fast takeover.

A fifth process asks: one actor with 100 asks outstanding. Each answer waits for a check of the
fence of its slot that begins after it, so that no former owner can answer.

casty does the same with its actors and a client; a read there may be one of a former owner.
"""

import tempfile
import time

from benchmarks.entity_hosts import LIMIT, TEXT, Count, Note, Sender, hosting, ref_of
from benchmarks.measure import Measure, Subject
from benchmarks.peers import casty
from callboard import Node

ASKS = 100_000
ENTITIES = 1_000
NODES = 4


def asked(share: float = 1.0) -> float:
    """Return the asks that are answered in a second; all entities are awake before."""
    keys = [f"k-{number}" for number in range(ENTITIES)]
    with (
        tempfile.TemporaryDirectory() as folder,
        hosting(f"sqlite:{folder}/state.db", NODES) as addresses,
        Node() as node,
    ):
        for address in addresses:
            node.connect(address)
        for answer in [ref_of(node, key).ask(Note(TEXT), timeout=LIMIT) for key in keys]:
            answer.result(LIMIT)
        sender = node.spawn(Sender, keys, Count())
        times = max(1, int(ASKS * share))
        started = time.perf_counter()
        sender.ask(times, timeout=LIMIT).result(LIMIT)
        return times / (time.perf_counter() - started)


MEASURE = Measure(
    title="read-only asks of entities in four processes",
    unit="asks/s",
    subjects=(
        Subject("callboard, 100 outstanding", asked),
        Subject(
            "casty, client",
            lambda share: casty.asked(NODES, max(1_000, int(ASKS * share))),
            casty.prepare,
            against="callboard, 100 outstanding",
        ),
    ),
    limit=180.0,
)
