"""A short run of the fuzzer, and every case that once failed."""

import pytest

from tests.fuzz.__main__ import run
from tests.fuzz.case import dump_case, load_case
from tests.fuzz.targets import REGRESSIONS, TARGETS, replay

pytestmark = pytest.mark.slow

#: Seeds far away from those that `make fuzz` records.
FIRST = 1_000_000_000
FRAMES = {
    "reader": 8_000,
    "handshake": 5_000,
    "payload": 6_000,
    "control": 5_000,
    "flow": 6_000,
    "gateway": 6_000,
    "mqtt": 4_000,
    "mqtt-router": 1_500,
    "node": 1_000,
    "carriers": 1_000,
    "entities": 600,
    "parts": 2_000,
    "value": 2_000,
    "websocket": 1_500,
    "websocket-client": 1_500,
    "zeromq": 4_000,
    "log-write": 4_000,
    "broker-1.4": 2_000,
    "run": 2_000,
    "filter": 4_000,
    "core": 2_000,
    "endpoint": 600,
    "files": 200,
    "seal": 20_000,
}


@pytest.mark.parametrize("name", FRAMES)
def test_damaged_frames_give_events_or_a_typed_error(name, monkeypatch, tmp_path):
    monkeypatch.setattr("tests.fuzz.targets.REGRESSIONS", tmp_path)

    done = run(TARGETS[name], FIRST, FRAMES[name], 60.0)

    assert done["findings"] == 0
    assert done["frames"] >= FRAMES[name]


def test_a_large_frame_in_drops_takes_no_more_memory_than_its_bytes():
    """Once each drop was kept as an object of its own: 25 times the bytes of the frame."""
    case = TARGETS["reader"].make(0)

    assert case["measure"]
    assert max(map(len, case["chunks"])) < 10
    assert TARGETS["reader"].run(case) == 0


@pytest.mark.parametrize("path", sorted(REGRESSIONS.glob("*.json")), ids=lambda path: path.stem)
def test_what_was_found_once_stays_mended(path):
    assert replay(path) > 0


@pytest.mark.parametrize("name", TARGETS)
def test_a_seed_gives_the_same_case_that_a_file_keeps(name):
    case = TARGETS[name].make(7)

    assert TARGETS[name].make(7) == case
    assert load_case(dump_case(case)) == case
