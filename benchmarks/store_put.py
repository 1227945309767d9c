"""Stores: put new keys into a master in memory, one process.

The time ends when a `get` of the last key is answered; both sides answer it after all puts.
"""

from benchmarks.peers.zeek_stores import compared, pair

MEASURE = compared("stores, put on a master", "puts/s", pair("put", 200_000, 30_000))
