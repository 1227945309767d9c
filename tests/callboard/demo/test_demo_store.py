"""The demo's store on real nodes: what a clone kept is in the file of the master."""

import pytest

from callboard import Node
from callboard.demo.demo_store import CloneKeeping, DemoStore, Peak
from callboard.topics.hub import Hub
from tests.polling import eventually


class Notes(list):
    """Takes notes as a desk does."""

    def __call__(self, kind, **fields):
        self.append((kind, fields))


def report_when(keeping, is_there):
    """Ask for reports until one is as it should be."""

    def expected():
        report = keeping.report()
        return report if report is not None and is_there(report) else None

    return eventually(expected, interval=0.01)


@pytest.mark.timeout(30)
def test_what_was_acknowledged_is_there_when_the_master_comes_back(tmp_path):
    path = str(tmp_path / "metrics.db")
    with Node(name="A") as a:
        with Node(name="C") as c:
            notes = Notes()
            master = DemoStore(Hub.of(c), notes, path)
            c.listen("127.0.0.1", 0)
            clone = CloneKeeping(Hub.of(a))
            a.connect(c.address)
            for level in (50.0, 90.0, 10.0):
                clone.keep("A.cpu", level)

            report = report_when(clone, lambda report: report["acknowledged"] == 3)

            assert report["written"] == 3
            assert not report["parted"]
            shown = {"A.cpu latest": 10.0, "A.cpu peak": 90.0}
            assert report_when(clone, lambda report: report["shown"] == shown)
            held = {"entries": 3, "kept": {report["life"]: 3}}
            assert master.report() == {"role": "master", "parted": False, **held}
            assert notes == [("master_open", {"entries": 0, "kept": {}, "writes": 0})]

            clone.close()
            clone.keep("A.cpu", 99.0)
            master.close()
            assert clone.report()["parted"]
            assert clone.report()["written"] == 3
            assert master.report() == {"role": "master", "parted": True, **held}

        again = DemoStore(Hub.of(a), notes, path)
        report_when(again, lambda report: report["entries"] == 3)
        assert notes[1:] == [("master_open", {**held, "writes": 3})]
        again.close()


def test_a_peak_is_the_highest_value_of_its_time():
    peak = Peak(60.0)

    told = [peak.add(at, value) for at, value in ((0, 5), (1, 9), (2, 3), (3, 4), (59, 4))]
    assert told == [True, True, False, False, False]
    assert peak.value == 9

    assert peak.add(61.0, 1)
    assert peak.value == 4
    assert peak.add(119.0, 1)
    assert peak.value == 1
