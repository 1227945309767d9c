"""Where the spans of a hosted node go."""

import json
import subprocess
import sys

import pytest

pytest.importorskip("opentelemetry.sdk", reason="needs pip install 'callboard[otel]'")

from callboard.cli.hosting.spans import NoSpanExporter, spans_exported

PROGRAM = """
from callboard import Actor, Node, handler
from callboard.cli.hosting.spans import spans_exported

class Till(Actor):
    @handler
    def add(self, by: int) -> int:
        return by

with spans_exported("console", "shop"), Node() as node:
    node.spawn(Till).ask(1).result(10)
"""


def test_spans_on_the_console_are_lines_of_json_of_the_node():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120
    )

    spans = [json.loads(line) for line in done.stderr.splitlines()]
    assert {span["name"] for span in spans} == {"ask int", "Till.add"}
    assert {span["resource"]["attributes"]["service.name"] for span in spans} == {"shop"}


def test_a_missing_exporter_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter", None)

    spans = spans_exported("otlp", "shop")
    with pytest.raises(NoSpanExporter, match="pip install opentelemetry-exporter-otlp"):
        spans.__enter__()


def test_without_tracing_no_span_is_made():
    with spans_exported("off", "shop"):
        from callboard.kernel.tracing import INSTRUMENTATION

        assert INSTRUMENTATION.spans is None
