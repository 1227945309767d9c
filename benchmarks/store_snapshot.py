"""Stores: attach a clone of a master with 1,000,000 entries, until all of them are there.

The master is in another process. Broker sends each entry as a command; callboard sends chunks.
"""

from benchmarks.peers.zeek_stores import compared, pair

MEASURE = compared(
    "stores, 1,000,000 entries to a new clone",
    "entries/s",
    pair("snapshot", 1_000_000, 1_000_000, other="keeper"),
)
