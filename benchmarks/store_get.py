"""Stores: get values of 1,000 keys, from a thread of the program.

From a master in the same process, and from a clone whose master is in another one. Broker asks
an actor for each value; callboard reads the copy directly.
"""

from benchmarks.peers.zeek_stores import compared, pair

MEASURE = compared(
    "stores, get on a master or clone",
    "gets/s",
    pair("get-master", 500_000, 10_000, kind=", master"),
    pair("get-clone", 500_000, 10_000, other="keeper", kind=", clone"),
)
