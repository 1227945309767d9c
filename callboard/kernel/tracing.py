"""Trace contexts of messages, and spans of asks and handlers."""

from callboard.actors.envelope import INSTRUMENTATION as INSTRUMENTATION
from callboard.actors.envelope import Begun as Begun
from callboard.actors.envelope import TraceContext as TraceContext
from callboard.actors.envelope import traced as traced
from callboard.actors.envelope import traceparent as traceparent
from callboard.actors.envelope import tracestate as tracestate
