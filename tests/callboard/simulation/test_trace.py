"""Traces and dumps: text that is the same in each run, and how two of them differ."""

import zlib

import pytest

from callboard import Actor
from callboard.simulation import Cluster
from callboard.simulation import trace as traces
from callboard.simulation.trace import (
    Dump,
    EventTrace,
    UnreadableDump,
    dump_path,
    first_difference,
)


class Silent(Actor):
    """Handles nothing."""


def test_events_hold_no_addresses_of_objects():
    cluster = Cluster(3)
    a, b = cluster(2)
    ref = b.spawn(Silent)
    ref.tell(object())
    ref.stop()
    cluster.advance(1.0)
    ref.tell(object())
    cluster.advance(1.0)
    cluster.close()  # ends the trace

    lines = cluster.trace.lines()
    assert any(f"b Unexpected ref={ref} message=object" in line for line in lines)
    assert any(f"b DeadLetter ref={ref} message=object" in line for line in lines)
    assert any(f"{a.name} LinkUp peer={b.node_id.hex()}" in line for line in lines)
    assert not any(" at 0x" in line for line in lines)


def test_events_beyond_the_limit_count_for_the_checksum(monkeypatch):
    monkeypatch.setattr(traces, "EVENT_LIMIT", 2)
    trace = EventTrace()

    for number in range(4):
        trace.note(1.5, "a", "does", number)

    checksum = zlib.crc32(b"1.500000000 a does 21.500000000 a does 3")
    assert trace.lines() == [
        "1.500000000 a does 0",
        "1.500000000 a does 1",
        f"2 more, checksum {checksum:08x}",
    ]


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        (["a", "b"], ["a", "b"], None),
        (["a", "b"], ["a", "c"], (1, "b", "c")),
        (["a"], ["a", "c"], (1, "(the end)", "c")),
        (["a", "b"], ["a"], (1, "b", "(the end)")),
    ],
)
def test_the_first_difference_is_told(before, after, found):
    assert first_difference(before, after) == found


def test_a_dump_is_read_as_it_was_written(tmp_path):
    dump = Dump(7, "test_x.py::test_it[ä]", ["0.0 a b"])

    path = dump.write(tmp_path)

    assert path == dump_path(tmp_path, 7)
    assert Dump.read(path) == dump


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        '{"seed": 1}',
        '{"seed": "x", "test": "", "events": []}',
        '{"seed": 1, "test": 2, "events": []}',
        '{"seed": 1, "test": "", "events": 3}',
    ],
)
def test_a_file_that_is_no_dump_is_refused(tmp_path, content):
    path = tmp_path / "1.json"
    path.write_text(content)

    with pytest.raises(UnreadableDump, match="again"):
        Dump.read(path)
