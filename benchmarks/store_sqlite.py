"""Stores: put new keys into a master in a SQLite file, until the last one is durable.

Both sides use the modes of Broker 1.4: synchronous FULL, journal DELETE. Broker has a
transaction for each put; with callboard all waiting puts share one.
"""

from benchmarks.peers.zeek_stores import compared, pair

MEASURE = compared("stores, put into SQLite", "puts/s", pair("sqlite", 20_000, 1_000))
