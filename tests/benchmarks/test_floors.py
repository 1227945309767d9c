"""What `make bench` complains about."""

import json
from importlib import import_module

import pytest

from benchmarks.__main__ import MEASURES
from benchmarks.floors import FLOORS, complaints, recorded
from benchmarks.measure import Measure, Subject
from benchmarks.results import Result, Taken

OURS = Subject("callboard", float)
PEER = Subject("CAF, request", float, against="callboard")


def result_of(name, ours, peers, *, more_is_better=True):
    measure = Measure("a measure", "1/s", (OURS, PEER), more_is_better)
    return Result(name, measure, [Taken(OURS, ours), Taken(PEER, peers)])


def test_a_ratio_below_its_floor_is_told():
    assert complaints(result_of("local_ask", [39, 38, 90], [100]), {}) == [
        "a measure: CAF, request: 0.39x, promised 0.4x"
    ]
    assert complaints(result_of("local_ask", [41, 40, 90], [100]), {}) == []


def test_a_ratio_a_tenth_below_the_one_recorded_last_is_told():
    result = result_of("local_ask", [50], [100])
    assert complaints(result, {"local_ask": {"CAF, request": 0.55}}) == []
    assert complaints(result, {"local_ask": {"CAF, request": 0.56}}) == [
        "a measure: CAF, request: 0.50x, recorded last 0.56x"
    ]


@pytest.mark.parametrize(("figure", "has_sender"), [(0.9, False), (1.1, True)])
def test_a_time_above_its_promise_is_told(figure, has_sender):
    result = result_of("restart", [figure], [1], more_is_better=False)
    assert bool(complaints(result, {})) == has_sender


def test_a_missing_peer_is_no_complaint():
    assert complaints(result_of("local_ask", [1], []), {"local_ask": {"CAF, request": 9}}) == []


def test_ratios_are_read_from_an_earlier_run(tmp_path):
    file = tmp_path / "results.json"
    assert recorded(file) == {}
    subjects = [result_of("local_ask", [50], [100]).as_json()]
    file.write_text(json.dumps({"measures": {"local_ask": subjects[0]}}))
    assert recorded(file) == {"local_ask": {"CAF, request": 0.5}}


def test_every_floor_belongs_to_a_subject_that_is_measured():
    assert set(FLOORS) <= set(MEASURES)
    for name, floors in FLOORS.items():
        measure = import_module(f"benchmarks.{name}").MEASURE
        assert set(floors) <= {subject.name for subject in measure.subjects}
