"""A bridge between two processes; `make faults` has the same with more of everything."""

import pytest

from tests.faults.bridge_outage import MOSQUITTO, MosquittoSite, Outages, play


@pytest.mark.slow
def test_a_bridge_loses_nothing_when_its_uplink_breaks_and_routers_are_killed(tmp_path) -> None:
    result = play(tmp_path, Outages(1_000, cuts=3, freezes=3, kills=2), patience=60)

    assert result.problems == []
    assert result.lost() == []
    assert result.doubled() == []


@pytest.mark.slow
@pytest.mark.skipif(MOSQUITTO is None, reason="mosquitto is not installed")
def test_a_bridge_to_mosquitto_loses_nothing_when_mosquitto_is_stopped(tmp_path) -> None:
    outages = Outages(1_000, cuts=3, freezes=3, kills=4)
    result = play(tmp_path, outages, patience=60, far_site=MosquittoSite)

    assert result.problems == []
    assert result.lost() == []
    assert result.doubled() == []
