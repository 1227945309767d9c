"""Logs of other machines, by Arrow Flight: what serves them, and what reads them."""
