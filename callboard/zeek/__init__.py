"""Zeek's wire formats, and its events as typed dataclasses."""

from callboard.zeek.event import from_value, zeek_event, zeek_events

__all__ = ["from_value", "zeek_event", "zeek_events"]
