"""Figures of `callboard node top`."""

from callboard.cli.node import busy_shares, summary
from callboard.proxies.inspection import Inspection


def told(**seconds):
    return Inspection("shop", 60.0, [], 0, 0, 0, 0, 0, False, handler_seconds=seconds)


def test_top_shows_shares_of_the_time_since_the_previous_sample_busiest_first():
    shares = busy_shares(told(Till=5.0, Stock=3.0, Idle=9.0), {"Till": 4.0, "Idle": 9.0}, 4.0)

    assert list(shares.items()) == [("Stock", 0.75), ("Till", 0.25)]


def test_the_summary_names_the_busy_classes_if_there_are_any():
    assert summary(told(), {"Stock": 0.75, "Till": 0.25}).endswith(
        "time in handlers: Stock 75%, Till 25%"
    )
    assert summary(told(), {}).endswith("time in handlers: -")
