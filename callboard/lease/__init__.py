"""Leases: who may do what, for how long, decided by a register with compare-and-set.

`register.py` is what a register does, `sqlite.py` and `postgresql.py` are registers in
databases, `errors.py` is what can go wrong with them and with states. The folder `machine` says
when a lease is valid and when it may be killed, `driver.py` holds one on a thread.
"""
