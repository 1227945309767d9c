"""Garbage collection in a router's process."""

import gc

import pytest

from callboard.mqtt.service.router import YOUNG, tune_collector


@pytest.fixture(autouse=True)
def as_before():
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


def test_the_collector_skips_loaded_modules_and_still_frees_cycles() -> None:
    tune_collector()

    assert gc.get_freeze_count() > 10_000
    assert gc.get_threshold()[0] == YOUNG
    cycle: list[object] = []
    cycle.append(cycle)
    del cycle
    assert gc.collect() >= 1
