"""No JSON that leaves callboard has a number that JSON lacks."""

import ast
import json
import logging
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

import callboard
from callboard.commitlog.json_text import payload_json, to_json
from callboard.gateway.modules import topic as topic_module
from callboard.gateway.modules.map import MapArguments, MapModule
from callboard.gateway.wire.message import message_of
from callboard.model.errors import UnsupportedData
from callboard.mqtt.service import topic_bridge
from callboard.operation.logs import JsonFormatter
from callboard.pages import json_page
from callboard.support.json_form import NUMBERS, json_of
from callboard.topics.machine.effect import CoreCounters
from callboard.zeek.doors.unwritten import KINDS_LIMIT, UnwrittenMessages
from callboard.zeek.json_message import message_of_frame, message_to_json, parse_frame
from tests.sources import mentioning


def refuse(word: str) -> NoReturn:
    raise AssertionError(f"{word} is not JSON")


def strictly(text: str | bytes) -> Any:
    """Read JSON as other software does."""
    return json.loads(text, parse_constant=refuse)


VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text()),
    lambda inner: st.one_of(st.lists(inner), st.dictionaries(st.text(), inner)),
)


def same(got: Any, value: Any) -> bool:
    """Return whether a value survived JSON; numbers that JSON lacks are texts."""
    if isinstance(value, float) and not math.isfinite(value):
        return got == str(value) and str(NUMBERS[got]) == got
    if isinstance(value, list):
        return len(got) == len(value) and all(map(same, got, value))
    if isinstance(value, dict):
        return got.keys() == value.keys() and all(same(got[k], value[k]) for k in value)
    return bool(got == value)


@given(VALUES)
def test_every_value_becomes_valid_json(value: Any) -> None:
    assert same(strictly(json_of(value)), value)
    assert same(strictly(json_of([value, {1, 2}], default=lambda _: math.nan))[0], value)


def test_a_value_that_contains_itself_is_refused() -> None:
    held: list[object] = [math.nan]
    held.append(held)
    with pytest.raises(ValueError, match=r"ircular|range"):
        json_of(held)
    assert strictly(json_of({math.nan: 1})) == {"nan": 1}


def _mapped(value: Any) -> bytes:
    module = MapModule.__new__(MapModule)
    module._args = MapArguments(add={"x": value})
    return module._changed({})


def _formatted(value: Any) -> str:
    record = logging.makeLogRecord({"msg": "m", "held": value})
    return JsonFormatter().format(record)


EDGES: dict[str, Callable[[Any], Any]] = {
    "page": lambda value: json_page(value).text,
    "log cat, topic and store commands, dashboard": to_json,
    "payload of a log": lambda value: payload_json(_cbor(value), is_bytes=False),
    "topic to gateway": lambda value: json_of(topic_module._plain(value)),
    "map of a gateway": _mapped,
    "line to gateway": lambda value: message_of({"content": value}).content,
    "topic to MQTT": topic_bridge._payload,
    "log record": _formatted,
    "WebSocket of Zeek": lambda value: message_to_json("/t", value),
}


def _cbor(value: Any) -> bytes:

    return cbor2.dumps(value)


@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_no_edge_writes_words_that_are_not_json(edge: str, number: float) -> None:
    text = EDGES[edge]([1.5, [number]])
    found = strictly(text)
    assert str(number) in json.dumps(found)


@given(st.floats())
def test_a_real_survives_the_json_of_zeek(value: float) -> None:
    text = message_to_json("/t", [value])
    strictly(text)
    _, content = message_of_frame(parse_frame(text))

    (back,) = cbor2.loads(content)
    assert back == value or (math.isnan(back) and math.isnan(value))


def test_values_without_a_form_on_a_wire_are_counted_and_logged_once_per_kind(
    caplog: pytest.LogCaptureFixture,
) -> None:
    hub: Any = SimpleNamespace(counters=CoreCounters())
    unwritten = UnwrittenMessages(hub, logging.getLogger("callboard.zeek"))
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            unwritten.add("ann", "/a", UnsupportedData("no"))
        assert len(caplog.records) == 1
        for number in range(2 * KINDS_LIMIT):
            unwritten.add("ann", f"/b/{number}", UnsupportedData("no"))
    assert len(caplog.records) == KINDS_LIMIT
    assert unwritten.count == hub.counters.unwritten == 3 + 2 * KINDS_LIMIT


#: Modules that write only values of their own with `json.dumps`, or say `allow_nan=False`.
OWN_VALUES = {
    "backup/manifest.py",
    "cli/log.py", "cli/mqtt.py", "cli/output.py", "commitlog/fields/declared.py",
    "commitlog/export/parquet.py", "commitlog/export/postgresql.py", "commitlog/export/rows.py",
    "commitlog/fields/restoring.py", "commitlog/sealed.py",
    "commitlog/following/named.py", "commitlog/identity/position.py", "commitlog/json_text.py",
    "commitlog/objects/archive.py",
    "commitlog/objects/manifest.py", "commitlog/objects/store.py", "commitlog/remote/disk.py",
    "commitlog/remote/server.py", "dashboard/guard.py", "entity/machine/table.py",
    "entity/state/postgresql.py", "flow/protocol/message.py", "gateway/outprocess.py",
    "gateway/wire/message.py", "lease/etcd.py", "support/json_form.py",
    "mqtt/service/mosquitto_import.py", "pipeline/process/worker_python.py",
    "pipeline/progress.py", "pipeline/spark/checkpoint.py", "pipeline/spark/journal.py",
    "pipeline/spark/options.py",
    "log_service/flight_process.py", "simulation/processes.py",
    "simulation/schedules/schedule_test.py", "simulation/trace.py", "worker_process.py",
    "workers/pool.py", "zeek/web_socket.py",
}  # fmt: skip


def test_values_of_users_are_written_by_one_function() -> None:
    root = Path(callboard.__file__).parent
    found = set()
    for room in (root, root.parent / "basp", root.parent / "proxies", root.parent / "actors"):
        for path, tree in mentioning(room, "json.dump"):
            if "demo" in path.parts:
                continue
            for node in ast.walk(tree):
                if isinstance(node, ast.Attribute) and ast.unparse(node) in (
                    "json.dumps",
                    "json.dump",
                ):
                    found.add(str(path.relative_to(room)))
    assert found <= OWN_VALUES, "write values of users by `json_form.json_of`"
