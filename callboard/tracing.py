"""Spans of OpenTelemetry: one for each ask, and one for each handled message.

    from callboard import tracing

    tracing.start()                       # with the provider that the program has set
    with Node() as node: ...

Messages carry a trace context, which connects the spans across actors and nodes. The span of an
ask is a child of the asker's span. The span of a handler is a child of the ask, or of the
sender's span if its message is not an ask. A message without a context begins a trace. Messages
of the runtime itself have no spans.

| span | kind | duration |
|---|---|---|
| `ask TYPE` | client | from the ask to its answer or error |
| `ACTOR.HANDLER` | server for asks, consumer for tells | the handler, including awaits |

Needs the extra `otel`. Before `start()` the package is not imported, and messages cost no more.
"""

import asyncio
import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from callboard.arguments import wrong_argument
from callboard.kernel.actors import Call
from callboard.kernel.context import current_cell
from callboard.kernel.errors import CallboardError
from callboard.kernel.reply import Future
from callboard.kernel.tracing import INSTRUMENTATION, Begun, TraceContext
from callboard.support.text import error_text

if TYPE_CHECKING:
    from opentelemetry.trace import Span, TracerProvider

#: Modules of the runtime; their messages and handlers get no spans.
_OWN: Final = "callboard."


class OpenTelemetryMissing(CallboardError, ImportError):
    """The extra `otel` is not installed."""


def start(tracer_provider: "TracerProvider | None" = None) -> None:
    """Start spans for all asks, and for messages to actors that are spawned later.

    Call it once in each process, before you create its nodes.

    Args:
        tracer_provider: creates the tracer; by default the provider that the program has set,
            or the one that `opentelemetry-instrument` and the variables `OTEL_…` configure.

    Raises:
        OpenTelemetryMissing: the extra `otel` is not installed.
        WrongArgument: the argument is not a provider.
    """
    try:
        from opentelemetry import trace
    except ImportError:
        msg = "spans need OpenTelemetry; pip install 'callboard[otel]'"
        raise OpenTelemetryMissing(msg) from None
    if not isinstance(tracer_provider, trace.TracerProvider | None):
        msg = "start() takes a TracerProvider of opentelemetry.sdk.trace"
        raise wrong_argument(msg, tracer_provider)
    spans = _Spans(tracer_provider)
    INSTRUMENTATION.make_spans(spans, spans.current)


def stop() -> None:
    """Stop creating spans; messages still carry trace contexts."""
    INSTRUMENTATION.make_spans(None)


class _Spans:
    """Creates the spans, and converts their contexts to trace contexts of messages."""

    def __init__(self, provider: "TracerProvider | None") -> None:
        from opentelemetry import trace
        from opentelemetry.trace.propagation import tracecontext

        self._api = trace
        self._tracer = trace.get_tracer("callboard", tracer_provider=provider)
        self._texts = tracecontext.TraceContextTextMapPropagator()

    def current(self) -> TraceContext | None:
        """Return the context of the current span, or else of the message being handled."""
        return self._written(self._api.get_current_span()) or INSTRUMENTATION.trace.get()

    def _written(self, span: "Span") -> TraceContext | None:
        """Return the context of a span as messages carry it; None for an invalid span."""
        texts: dict[str, str] = {}
        self._texts.inject(texts, self._api.set_span_in_context(span))
        parent = texts.get("traceparent")
        return None if parent is None else TraceContext(parent, texts.get("tracestate", ""))

    def ask(self, ref: Any, message: object) -> Begun | None:
        """Start the span of an ask; return None for an ask of the runtime."""
        kind = type(message)
        label = message.method if isinstance(message, Call) else kind.__qualname__
        if kind.__module__.startswith(_OWN) and kind is not Call:
            return None
        carried = self.current()
        span = self._tracer.start_span(
            f"ask {label}",
            context=self._read(carried),
            kind=self._api.SpanKind.CLIENT,
            attributes={
                **_operation("send", label),
                "callboard.destination.actor.id": ref.actor_id,
                "callboard.destination.node.id": ref.node_id.hex(),
            },
        )

        def end(future: Future[Any]) -> None:
            if future.cancelled():
                span.set_attribute("callboard.cancelled", value=True)
            elif (error := future.exception()) is not None:
                self._failed(span, error)
            span.end()

        return Begun(self._written(span), end)

    def around(self, function: Callable[..., Any], *, awaits: bool) -> Callable[..., Any]:
        """Return a function that calls a handler or method in a span."""
        name = getattr(function, "__name__", "handler")
        if (getattr(function, "__module__", "") or "").startswith(_OWN):
            return function
        is_method = inspect.ismethod(function)

        async def run(*args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True  # inspection names the handler, not this wrapper
            with self._handling(name, args, is_method=is_method):
                return await function(*args, **kwargs)

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True
            if INSTRUMENTATION.spans is not self:
                return function(*args, **kwargs)
            if not awaits:
                with self._handling(name, args, is_method=is_method):
                    return function(*args, **kwargs)
            if is_method:  # wrong arguments are the caller's error, and must not stop the actor
                try:
                    inspect.signature(function).bind(*args, **kwargs)
                except TypeError as error:
                    raise error.with_traceback(None) from None
            return run(*args, **kwargs)

        return call

    @contextmanager
    def _handling(self, name: str, args: tuple[Any, ...], *, is_method: bool) -> Iterator[None]:
        """Hold a span open while an actor handles a message, or a call of a method."""
        cell = current_cell.get()
        assert cell is not None, "handlers run in actors"
        sender, runtime = cell.sender, cell.runtime
        is_asked = sender is not None and sender.expects
        actor = type(cell.actor).__qualname__
        attributes: dict[str, Any] = {
            **_operation("process", name if is_method else type(args[1]).__qualname__),
            "callboard.actor": actor,
            "callboard.actor.id": cell.number,
            "callboard.node": runtime.name,
            "callboard.node.id": runtime.node_id.hex(),
        }
        if sender is not None and sender.node:
            attributes["callboard.sender.node.id"] = sender.node.hex()
        kinds = self._api.SpanKind
        with self._tracer.start_as_current_span(
            f"{actor}.{name}",
            context=self._read(INSTRUMENTATION.trace.get()),
            kind=kinds.SERVER if is_asked else kinds.CONSUMER,
            attributes=attributes,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield
            except asyncio.CancelledError:
                span.set_attribute("callboard.cancelled", value=True)
                raise
            except BaseException as error:
                self._failed(span, error)
                raise

    def _read(self, carried: TraceContext | None) -> Any:
        """Return the context of OpenTelemetry for the trace context of a message."""
        texts = {} if carried is None else {"traceparent": carried.parent}
        if carried is not None and carried.state:
            texts["tracestate"] = carried.state
        return self._texts.extract(texts)

    def _failed(self, span: "Span", error: BaseException) -> None:
        """Record an error in a span, even if its `__str__` raises."""
        with suppress(Exception):
            span.record_exception(error)
        span.set_status(self._api.Status(self._api.StatusCode.ERROR, error_text(error)))


def _operation(kind: str, label: object) -> dict[str, Any]:
    """Return the attributes that spans of both kinds have, as OpenTelemetry names them."""
    return {
        "messaging.system": "callboard",
        "messaging.operation.type": kind,
        "callboard.message": str(label),
    }
