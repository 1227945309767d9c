"""Stores: put 10,000 new keys on a master, until a clone in another process has the last one.

The other process looks for the key each millisecond, and then says so by a topic.
"""

from benchmarks.peers.zeek_stores import compared, pair

MEASURE = compared(
    "stores, 10,000 puts until a clone has them",
    "puts/s",
    pair("to-clone", 10_000, 10_000, other="mirror"),
)
