"""Stores: put 10,000 new keys on a clone, until the last one can be read there.

Its master is in another process: each put goes there and comes back.
"""

from benchmarks.peers.zeek_stores import compared, pair

MEASURE = compared(
    "stores, 10,000 puts on a clone and back",
    "puts/s",
    pair("to-master", 10_000, 10_000, other="keeper"),
)
