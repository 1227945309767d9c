"""Stores: put one key on a master, until a clone in another process reports it.

The other process hears of the change as an event of its clone, and answers by a topic; then
comes the next put. Broker 1.4 collects messages for some milliseconds before it sends them.
"""

from benchmarks.peers.zeek_stores import compared, pair

MEASURE = compared(
    "stores, one put seen by a clone", "puts/s", pair("one", 2_000, 100, other="mirror")
)
