"""Faults with real processes: run by `make faults`."""
