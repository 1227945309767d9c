"""Traces of messages, and who watches asks and handlers."""

from callboard.actors.envelope import (
    INSTRUMENTATION,
    Begun,
    TraceContext,
    traced,
    traceparent,
    tracestate,
)

__all__ = ["Begun", "INSTRUMENTATION", "TraceContext", "traced", "traceparent", "tracestate"]
