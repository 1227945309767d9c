"""Trace contexts of messages, and spans of asks and handlers."""

from callboard.actors.envelope import (
    INSTRUMENTATION,
    Begun,
    TraceContext,
    traced,
    traceparent,
    tracestate,
)

__all__ = ["Begun", "INSTRUMENTATION", "TraceContext", "traced", "traceparent", "tracestate"]
