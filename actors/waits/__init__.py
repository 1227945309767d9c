"""Waits and their ends: the end of a node (`shutdown`), and cancellation without loss.

An `owned_future` returns a value that arrives at a cancelled wait. A `feed` is an async
iterator that survives a cancelled wait. Import from these modules.
"""
