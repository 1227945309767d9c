"""The published record: no seed counts twice, and runs go on where they ended."""

import json

from hypothesis import given
from hypothesis import strategies as st

from tests.simulation.record import Record

RANGES = st.tuples(st.integers(0, 60), st.integers(0, 20)).map(lambda r: (r[0], r[0] + r[1]))


@given(st.lists(RANGES, max_size=5))
def test_each_seed_counts_once(tmp_path_factory, ranges):
    path = tmp_path_factory.getbasetemp() / "simulation.json"
    path.unlink(missing_ok=True)
    record = Record.read(path)

    lived = [
        seed
        for begin, end in ranges
        for start, stop in record.missing(begin, end)
        for seed in range(start, stop)
        if record.add(start, stop, 0.5) is None
    ]

    assert sorted(lived) == sorted({s for begin, end in ranges for s in range(begin, end)})
    assert Record.read(path).seeds == len(lived)


def test_the_record_reads_what_earlier_versions_wrote(tmp_path):
    path = tmp_path / "simulation.json"
    path.write_text(json.dumps({"ranges": [[3000, 3800]], "seeds": 800}))

    assert Record.read(path).missing(2990, 3810) == [(2990, 3000), (3800, 3810)]


def test_seeds_that_mean_something_else_are_lived_again(tmp_path):
    path = tmp_path / "simulation.json"
    Record.read(path).add(0, 800, 4.0)

    record = Record.read(path, meaning=2)
    assert record.missing(0, 10) == [(0, 10)]
    record.add(0, 10, 0.5)

    again = Record.read(path, meaning=2)
    assert (again.seeds, again.earlier) == (10, {"seeds": 800, "hours": 4.0})
