"""Values that are nested too deep, before native code sees them."""

import ast
from collections import OrderedDict, deque
from pathlib import Path

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

import callboard
from callboard.support.nesting import (
    LEVEL_LIMIT,
    NestedTooDeep,
    check_levels,
    parse_json,
    to_cbor,
)
from tests.sources import mentioning

ROOT = Path(callboard.__file__).parent

#: Modules that may call `cbor2.dumps` themselves, and why no user or peer decides how deep.
OWN_CBOR = {
    "cbor/plain.py": "lists of numbers and texts of our own making",
    "cbor/writer.py": "runs of scalars",
    "broker/recording.py": "values that came through a reader with 16 levels",
    "commitlog/columns.py": "names, and payloads whose levels were checked all at once",
    "commitlog/producing/table.py": "numbers",
    "zeek/doors/web_socket_peer.py": "pairs of bytes",
    "topics/publishing.py": "topics",
    "topics/machine/catch_up.py": "topics",
    "topics/machine/run.py": "topics and values that are CBOR already",
    "model/encoding.py": "values of the data model, which has a limit of its own",
    "support/nesting.py": "after the check",
    "log_service/append.py": "numbers",
    "store/backend/sqlite.py": "values that the data model has checked",
    "store/machine/command.py": "values that the data model has checked",
    "store/machine/stored.py": "values that the data model has checked",
    "zeek/log_write.py": "texts and numbers",
}

#: Modules that may call `json.loads` themselves: they read files of this project.
OWN_JSON = {
    "cli/log.py", "cli/pipeline.py", "cli/work/entity_at.py", "commitlog/fields/declared.py",
    "commitlog/folder.py", "commitlog/following/named.py", "commitlog/objects/archive.py",
    "commitlog/objects/manifest.py", "commitlog/objects/store.py", "configuration/reading.py",
    "entity/machine/job_queue.py",  # one text
    "demo/analysis.py", "demo/line.py", "demo/mqtt_client.py", "demo/node_process.py",
    "pipeline/inputs.py", "pipeline/process/fork_server.py", "pipeline/progress.py",
    "pipeline/spark/journal.py", "pipeline/spark/options.py", "pipeline/spark/sink.py",
    "proxies/worker_process.py", "proxies/workers/pool.py", "log_service/flight_process.py",
    "simulation/child.py", "simulation/schedules/schedule_test.py", "simulation/trace.py",
}  # fmt: skip


def nested(levels: int, make=lambda inner: [inner]):
    value = 1
    for _ in range(levels):
        value = make(value)
    return value


MAKERS = {
    "list": lambda inner: [inner],
    "tuple": lambda inner: (inner,),
    "dict": lambda inner: {"a": inner, "b": 2},
    "key": lambda inner: {(inner,) if not isinstance(inner, dict) else 1: 0, "b": inner},
    "ordered dict": lambda inner: OrderedDict(a=inner),
    "deque": lambda inner: deque([inner]),
    "tag": lambda inner: cbor2.CBORTag(48900, [inner]),
    "mixed": lambda inner: [{"a": (inner,)}],
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_a_value_nested_too_deep_raises_its_own_error(make):
    with pytest.raises(NestedTooDeep, match="400 containers"):
        to_cbor(nested(20_000 if make is MAKERS["list"] else LEVEL_LIMIT + 1, make))


@pytest.mark.parametrize("value", [[], {}], ids=["list", "dict"])
def test_a_cycle_is_refused(value):
    if isinstance(value, list):
        value.append(value)
    else:
        value["self"] = value

    with pytest.raises(NestedTooDeep):
        to_cbor(value)


def test_the_limit_itself_is_allowed():
    assert cbor2.loads(to_cbor(nested(LEVEL_LIMIT))) == nested(LEVEL_LIMIT)


def test_repeated_references_to_a_list_are_checked_in_bounded_time():
    value = nested(LEVEL_LIMIT + 1, lambda inner: [inner] * 2)  # 2 ** 401 paths

    with pytest.raises(NestedTooDeep):
        check_levels(value)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 5)
    | st.text(max_size=3)
    | st.binary(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner),
    max_leaves=20,
)


@given(VALUES, st.integers(0, 6))
def test_exactly_the_values_with_more_levels_than_the_limit_are_refused(value, limit):
    if levels_of(value) > limit:
        with pytest.raises(NestedTooDeep):
            check_levels(value, limit)
    else:
        check_levels(value, limit)


def levels_of(value: object) -> int:
    parts = list(value.values()) if isinstance(value, dict) else value
    return 1 + max(map(levels_of, parts), default=0) if isinstance(parts, list) else 0


@pytest.mark.parametrize(
    "text", ["[" * 9_500 + "]" * 9_500, '{"a":' * 9_500 + "1" + "}" * 9_500]
)
def test_json_nested_too_deep_is_refused(text):
    with pytest.raises(NestedTooDeep):
        parse_json(text)


def test_json_parses_as_the_standard_library_does():
    assert parse_json('{"a": [1, 2.5, null]}') == {"a": [1, 2.5, None]}
    with pytest.raises(ValueError, match="Expecting"):
        parse_json("{")


def _calls(name: str, module: str) -> set[str]:
    """Return the files that call or pass on a function of a module, under any import."""
    found = set()
    for path, tree in mentioning(ROOT, name):
        plain = any(
            isinstance(node, ast.ImportFrom)
            and node.module == module
            and any(alias.name == name for alias in node.names)
            for node in ast.walk(tree)
        )
        dotted = any(
            isinstance(node, ast.Attribute)
            and node.attr == name
            and isinstance(node.value, ast.Name)
            and node.value.id == module
            for node in ast.walk(tree)
        )
        if plain or dotted:
            found.add(path.relative_to(ROOT).as_posix())
    return found


def test_values_of_users_and_peers_are_checked_before_native_encoders():
    assert _calls("dumps", "cbor2") <= OWN_CBOR.keys()


def test_json_of_users_and_peers_is_parsed_by_the_check_alone():
    assert _calls("loads", "json") <= OWN_JSON | {"support/nesting.py"}
