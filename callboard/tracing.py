"""Spans of OpenTelemetry: one for each ask, and one for each message that is handled.

    from callboard import tracing

    tracing.start()                       # with the provider that the program has set
    with Node() as node: ...

The trace context that callboard carries with messages joins the spans, over any number of
actors and nodes: the span of an ask is a child of the span that its asker is in; that of a
handler is a child of the ask, or of the span in which its message was told. A message that came
without a context begins a trace. What the runtime asks for itself has no spans.

| span | kind | its time |
|---|---|---|
| `ask TYPE` | client | from the ask to its answer or error |
| `ACTOR.HANDLER` | server for asks, consumer for tells | of the handler, awaits included |

Needs the extra `otel`; without `start()` the package is not imported, and nothing costs more.
"""

import asyncio
import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from callboard.kernel.actors import Call
from callboard.kernel.checks import wrong_argument
from callboard.kernel.context import current_cell
from callboard.kernel.errors import CallboardError
from callboard.kernel.reply import Future
from callboard.kernel.tracing import INSTRUMENTATION, Begun, TraceContext
from callboard.support.text import error_text

if TYPE_CHECKING:
    from opentelemetry.trace import Span, TracerProvider

#: Whose messages have no spans: the runtime's own.
_OWN: Final = "callboard."


class OpenTelemetryMissing(CallboardError, ImportError):
    """The extra `otel` is not installed."""


def start(tracer_provider: "TracerProvider | None" = None) -> None:
    """Make spans of what is asked, and of what actors handle that are spawned from now on.

    Call it once in each process, before its nodes are made.

    Args:
        tracer_provider: makes the tracer; left out, the one that the program has set, or what
            `opentelemetry-instrument` and the variables `OTEL_…` configure.

    Raises:
        OpenTelemetryMissing: the extra `otel` is not installed.
        WrongArgument: that is no provider.
    """
    try:
        from opentelemetry import trace
    except ImportError:
        msg = "spans need opentelemetry-api; pip install 'callboard[otel]'"
        raise OpenTelemetryMissing(msg) from None
    if not isinstance(tracer_provider, trace.TracerProvider | None):
        msg = "start() takes a TracerProvider of opentelemetry.sdk.trace"
        raise wrong_argument(msg, tracer_provider)
    spans = _Spans(tracer_provider)
    INSTRUMENTATION.make_spans(spans, spans.current)


def stop() -> None:
    """Make no spans from now on; contexts are carried as without them."""
    INSTRUMENTATION.make_spans(None)


class _Spans:
    """Makes spans, from the contexts that messages carry and for them."""

    def __init__(self, provider: "TracerProvider | None") -> None:
        from opentelemetry import trace
        from opentelemetry.trace.propagation import tracecontext

        self._api = trace
        self._tracer = trace.get_tracer("callboard", tracer_provider=provider)
        self._texts = tracecontext.TraceContextTextMapPropagator()

    def current(self) -> TraceContext | None:
        """Return the context of the current span, else the one that was carried here."""
        return self._written(self._api.get_current_span()) or INSTRUMENTATION.trace.get()

    def _written(self, span: "Span") -> TraceContext | None:
        """Return the context of a span as it is carried; None for one that is none."""
        texts: dict[str, str] = {}
        self._texts.inject(texts, self._api.set_span_in_context(span))
        parent = texts.get("traceparent")
        return None if parent is None else TraceContext(parent, texts.get("tracestate", ""))

    def ask(self, ref: Any, message: object) -> Begun | None:
        """Begin the span of an ask; None for one of the runtime's own."""
        kind = type(message)
        what = message.method if isinstance(message, Call) else kind.__qualname__
        if kind.__module__.startswith(_OWN) and kind is not Call:
            return None
        carried = self.current()
        span = self._tracer.start_span(
            f"ask {what}",
            context=self._read(carried),
            kind=self._api.SpanKind.CLIENT,
            attributes={
                **_operation("send", what),
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
            with self._handling(name, args, is_method=is_method):
                return await function(*args, **kwargs)

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if INSTRUMENTATION.spans is not self:
                return function(*args, **kwargs)
            if not awaits:
                with self._handling(name, args, is_method=is_method):
                    return function(*args, **kwargs)
            if is_method:  # who called it gets an error, and the actor goes on
                try:
                    inspect.signature(function).bind(*args, **kwargs)
                except TypeError as error:
                    raise error.with_traceback(None) from None
            return run(*args, **kwargs)

        return call

    @contextmanager
    def _handling(self, name: str, args: tuple[Any, ...], *, is_method: bool) -> Iterator[None]:
        """Have a span while an actor handles a message, or a call of a method."""
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
        """Return the context of OpenTelemetry with what was carried as its span, if any was."""
        texts = {} if carried is None else {"traceparent": carried.parent}
        if carried is not None and carried.state:
            texts["tracestate"] = carried.state
        return self._texts.extract(texts)

    def _failed(self, span: "Span", error: BaseException) -> None:
        """Write an error into a span, also one whose text cannot be made."""
        with suppress(Exception):
            span.record_exception(error)
        span.set_status(self._api.Status(self._api.StatusCode.ERROR, error_text(error)))


def _operation(kind: str, what: object) -> dict[str, Any]:
    """Return what a span says of any operation, in the words of OpenTelemetry."""
    return {
        "messaging.system": "callboard",
        "messaging.operation.type": kind,
        "callboard.message": str(what),
    }
