"""Traces of messages, and who watches asks and handlers."""

from callboard.actors.envelope import (
    COMPANY,
    Begun,
    TraceContext,
    traced,
    traceparent,
    tracestate,
)

__all__ = ["Begun", "COMPANY", "TraceContext", "traced", "traceparent", "tracestate"]
