"""Scales of costs: one file for each quantity that may be large."""
