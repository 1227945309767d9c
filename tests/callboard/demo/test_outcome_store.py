"""What the parent says about the store: nothing acknowledged is lost, or the run fails."""

import pytest

from callboard.demo.outcome import StoreBooks


def master(kept, *, entries=4, parted=False):
    return {"role": "master", "parted": parted, "entries": entries, "kept": kept}


def clone(life, written, acknowledged, **shown):
    return {
        "role": "clone",
        "parted": False,
        "life": life,
        "written": written,
        "acknowledged": acknowledged,
        "shown": {key.replace("_", " "): value for key, value in shown.items()},
    }


@pytest.fixture
def holdings():
    made = StoreBooks()
    made.take("B", None, is_witness=False)
    made.take("C", master({"A-1": 10, "D-1": 7}), is_witness=False)
    made.take("A", clone("A-1", 12, 10), is_witness=True)
    made.take("D", clone("D-1", 7, 7), is_witness=False)
    return made


def test_the_last_line_tells_what_was_acknowledged_and_what_of_it_is_lost(holdings):
    assert holdings.line() == "store: 17 writes acknowledged, 0 lost"
    assert holdings.problem() == ""

    holdings.take("C", master({"A-1": 10, "D-1": 4}), is_witness=False)

    assert holdings.line() == "store: 17 writes acknowledged, 3 lost"
    assert holdings.problem() == "the store lost 3 writes and doubled 0"


def test_a_write_that_was_carried_out_twice_is_found(holdings):
    holdings.take("C", master({"A-1": 10, "D-1": 8}), is_witness=False)

    assert holdings.problem() == "the store lost 0 writes and doubled 1"


def test_without_its_master_nobody_can_tell(holdings):
    holdings.ended("C")

    assert holdings.line() == "store: 17 writes acknowledged, its master is away"
    assert holdings.problem() == ""
    assert holdings.status().startswith("store: master away, clones keep writes")
    assert holdings.is_settled({"A", "D"})
    assert StoreBooks().line() == ""


def test_what_an_earlier_life_of_a_node_wrote_still_counts(holdings):
    holdings.ended("D")
    holdings.take("D", clone("D-2", 2, 1), is_witness=False)
    holdings.take("C", master({"A-1": 10, "D-1": 6, "D-2": 1}), is_witness=False)

    assert holdings.acknowledged == 18
    assert holdings.lost == 1


def test_it_is_settled_when_all_that_live_have_their_writes_acknowledged(holdings):
    assert not holdings.is_settled({"A", "C", "D"})
    assert holdings.is_settled({"C", "D"})

    holdings.take("A", clone("A-1", 12, 12), is_witness=True)

    assert holdings.is_settled({"A", "C", "D"})
