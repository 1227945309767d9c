"""Exports of logs to tables of other systems, with their position."""
