"""A bridge loses nothing while its uplink is cut and frozen, and routers are killed."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults import ROUNDS
from tests.faults.bridge_outage import MOSQUITTO, MosquittoSite, Outages, Site, play


@pytest.mark.timeout(480 * ROUNDS)
@pytest.mark.parametrize(
    "far_site",
    [
        Site,
        pytest.param(
            MosquittoSite,
            marks=pytest.mark.skipif(MOSQUITTO is None, reason="mosquitto is not installed"),
        ),
    ],
)
def test_a_bridge_loses_nothing_in_fifty_outages_and_twenty_kills(
    far_site: type[Site], tmp_path: Path, figure: Callable[[str], None]
) -> None:
    outages = Outages(20_000 * ROUNDS, cuts=25, freezes=25, kills=20)

    result = play(tmp_path, outages, patience=120, far_site=far_site)

    assert result.problems == []
    assert result.lost() == []
    assert result.doubled() == []
    told = f"{outages.cuts} cuts, {outages.freezes} freezes, {outages.kills} kills"
    figure(f"{told}: {len(result.sent)} messages in {result.seconds:.0f} s, 0 lost, 0 doubled")
