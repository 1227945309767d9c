"""How waits end: with their value, with their node (`shutdown`), or cancelled without a loss.

`owned_future` gives back what arrives at a cancelled wait, and `feed` is an async iterator that
survives one. Import from these modules.
"""
