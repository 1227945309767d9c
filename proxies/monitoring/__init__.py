"""Measurements of a node: figures of the last hour, round trips, memory of actors."""
