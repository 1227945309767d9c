"""How cost grows: the sizes are measured in order, and drawn."""

import json
from importlib import import_module
from xml.etree import ElementTree

import pytest

from benchmarks import growth
from benchmarks.curves import draw
from benchmarks.processes import RunFailedError


@pytest.mark.parametrize("name", growth.SCALES)
def test_every_scale_has_growing_sizes_and_figures_at_its_smallest(name):
    scale = import_module(f"benchmarks.scales.{name}").SCALE
    assert list(scale.sizes) == sorted(set(scale.sizes))
    if name not in ("payloads", "connections"):  # start processes, and take a second
        assert all(figure >= 0 for figure in scale.run(scale.sizes[0]).values())


def test_a_full_run_is_written_with_a_picture_for_each_scale(tmp_path, monkeypatch):
    monkeypatch.setattr(growth, "PUBLISHED", tmp_path / "growth.json")
    monkeypatch.setattr(growth, "run_bounded", lambda *_: '{"things/s": 1234567}\n')
    assert growth.main([]) == 0
    written = json.loads((tmp_path / "growth.json").read_text())
    points = written["scales"]["actors"]["points"]
    assert points[0] == {"size": 1, "things/s": 1_235_000}
    for name in growth.SCALES:
        assert ElementTree.parse(tmp_path / f"growth-{name}.svg").getroot().tag.endswith("svg")


def test_after_a_size_that_fails_no_larger_one_is_tried(tmp_path, monkeypatch):
    tried = []

    def run(command, _limit):
        tried.append(command[-1])
        if len(tried) == 2:
            message = "stopped after 900 s"
            raise RunFailedError(message)
        return '{"things/s": 1}'

    monkeypatch.setattr(growth, "run_bounded", run)
    target = tmp_path / "part.json"
    assert growth.main(["actors", "--json", str(target)]) == 1
    assert tried == ["1", "10"]
    written = json.loads(target.read_text())["scales"]["actors"]
    assert written["troubles"] == ["10: stopped after 900 s"]
    assert len(written["points"]) == 1


def test_a_flat_figure_and_a_zero_can_be_drawn():
    drawn = draw("a title", "things", [{"size": 1, "x": 0.0}, {"size": 1000, "x": 0.0}])
    assert "a title: x" in drawn
