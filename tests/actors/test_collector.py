"""How often the process of a node looks for garbage."""

import gc
from collections.abc import Iterator

import pytest

from callboard.actors.runner.collector import YOUNG, relax
from callboard.proxies.node import Node


@pytest.fixture(autouse=True)
def _thresholds() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


@pytest.mark.parametrize("default", [700, 2_000])
def test_a_node_raises_the_default_for_young_objects(default: int) -> None:
    gc.set_threshold(default, 10, 7)
    with Node():
        assert gc.get_threshold() == (YOUNG, 10, 7)


@pytest.mark.parametrize("own", [0, 1_000, 50_000])
def test_thresholds_set_by_a_program_remain(own: int) -> None:
    gc.set_threshold(own, 9, 8)
    relax()
    assert gc.get_threshold() == (own, 9, 8)
