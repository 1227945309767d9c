"""The spans of a node that `callboard node run` hosts: where they are exported."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Literal

from callboard import tracing
from callboard.kernel.errors import CallboardError

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

#: `off`; `otlp`, to a collector that the variables `OTEL_EXPORTER_OTLP_…` name; `console`, as
#: JSON on standard error.
SpanExport = Literal["off", "otlp", "console"]

_INSTALL: Final = "pip install opentelemetry-exporter-otlp"


class NoSpanExporter(CallboardError, ImportError):
    """The package that exports spans is not installed."""


@contextmanager
def spans_exported(export: SpanExport, node_name: str) -> Iterator[None]:
    """Record spans within the block; at its end, the last ones are exported.

    A provider that the program, or `opentelemetry-instrument`, has set is used as it is.

    Args:
        export: where spans go.
        node_name: the value of `service.name`, unless `OTEL_SERVICE_NAME` is set.

    Raises:
        NoSpanExporter: the exporter is not installed.
        OpenTelemetryMissing: the extra `otel` is not installed.
    """
    if export == "off":
        yield
        return
    provider = _provider(export, node_name)
    tracing.start(provider)
    try:
        yield
    finally:
        tracing.stop()
        if provider is not None:
            provider.shutdown()


def _provider(export: SpanExport, node_name: str) -> Any:
    """Return a provider with an exporter; None if the program has set a provider."""
    try:
        from opentelemetry import trace
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        msg = "spans need OpenTelemetry; pip install 'callboard[otel]'"
        raise tracing.OpenTelemetryMissing(msg) from None
    if isinstance(trace.get_tracer_provider(), TracerProvider):
        return None
    own = Resource({"service.name": node_name})
    provider = TracerProvider(resource=own.merge(OTELResourceDetector().detect()))
    provider.add_span_processor(BatchSpanProcessor(_exporter(export)))
    return provider


def _exporter(export: SpanExport) -> "SpanExporter":
    """Return the exporter of spans.

    Raises:
        NoSpanExporter: it is not installed.
    """
    import sys

    if export == "console":
        from opentelemetry.sdk.trace.export import ConsoleSpanExporter

        return ConsoleSpanExporter(out=sys.stderr, formatter=_as_line)
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError:
        msg = f"tracing = 'otlp' needs an exporter: {_INSTALL}"
        raise NoSpanExporter(msg) from None
    exporter: SpanExporter = OTLPSpanExporter()
    return exporter


def _as_line(span: Any) -> str:
    """Return a span as one line of JSON."""
    text: str = span.to_json(indent=None)
    return f"{text}\n"
