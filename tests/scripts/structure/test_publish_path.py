"""The way of an MQTT PUBLISH gets no longer."""

from scripts.structure.limits import Limits
from scripts.structure.publish_path import Call, Way, figures_of, measure_ways


def way(*files):
    return Way(tuple(Call(file, "f") for file in files))


def test_a_run_of_calls_in_one_file_is_one_stay():
    assert [file for file, _ in way("a", "a", "b", "a").stays] == ["a", "b", "a"]
    assert way("a", "a", "b", "a").files == 2


def test_a_file_entered_again_is_a_return():
    assert way("a", "b", "c").returns == 0
    assert way("a", "b", "a", "b", "b").returns == 2


def test_a_publish_takes_no_longer_way_than_its_limits():
    ways = measure_ways()

    assert Limits().failures(figures_of(ways)) == [], "\n\n".join(map(str, ways.values()))
    for each in ways.values():  # nothing was missed: it is read, routed and written
        assert each.files >= 3
