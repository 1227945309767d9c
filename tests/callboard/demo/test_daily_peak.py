"""Daily peaks of the demo's sensors, as entities."""

from pathlib import Path

import pytest

from callboard import Node
from callboard.demo.entities.daily_peak import AskPeak, DailyPeak, PeakWatch, PeakWriter
from tests.polling import eventually


@pytest.fixture
def nodes(tmp_path: Path):
    state = f"sqlite:{tmp_path}/peaks.db"
    with Node("A") as sensors, Node("B") as one, Node("C") as other:
        sensors.listen("127.0.0.1", 0)
        for host in (one, other):
            host.connect(sensors.address)
            host.host(DailyPeak, state=state)
        yield sensors, one, other


def test_a_peak_only_rises(nodes) -> None:
    sensors, *_ = nodes
    writer = PeakWriter(sensors)
    for level in (3.0, 7.0, 5.0):
        sensors.runtime.post(writer.keep, "A.cpu", level)
    eventually(lambda: list(writer.keys.values()) == [7.0, 7.0])
    for key in writer.keys:
        assert sensors.entity(DailyPeak, key).ask(AskPeak()).result(10) == 7.0


def test_peaks_of_a_lost_node_are_noted_when_they_answer_again(nodes) -> None:
    sensors, one, other = nodes
    writer, notes = PeakWriter(sensors), []
    watch = PeakWatch(sensors, writer, lambda kind, **fields: notes.append((kind, fields)))
    eventually(lambda: other.entity_stats()[0].slots > 0 < one.entity_stats()[0].slots)
    for number in range(20):
        sensors.runtime.post(writer.keep, f"A.{number}", float(number + 1))
    eventually(lambda: len(writer.keys) == 40)
    lost = other.node_id

    def owned() -> int:
        return sum(sensors.entity(DailyPeak, key).node_id == lost for key in writer.keys)

    before = owned()  # slots may still move there
    sensors.runtime.post(watch.lost, lost, "C")
    eventually(lambda: notes)
    ((kind, fields),) = notes
    assert before <= fields.pop("count") <= owned()
    assert (kind, fields) == ("peaks_back", {"name": "C", "lower": 0})
    sensors.runtime.post(watch.lost, lost, "D")  # hosts none
    writer.is_resting = True
    sensors.runtime.post(watch.lost, lost, "C")
    assert len(notes) == 1
