"""Leases: rights that a process holds for a limited time, decided by compare-and-set.

`register.py` defines the register, `sqlite.py`, `postgresql.py` and `etcd.py` implement it, and
`errors.py` has the errors of registers and states. The state machine in `machine` decides when
a lease is valid and when it may be killed; `driver.py` runs it on a thread.
"""
