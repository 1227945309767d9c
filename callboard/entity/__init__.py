"""Entities: actors by key whose state outlives every process."""
