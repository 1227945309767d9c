"""How cost grows: the sizes are measured in order, and drawn."""

import json
from importlib import import_module
from xml.etree import ElementTree

import pytest

from benchmarks import growth, page
from benchmarks.processes import RunFailedError
from benchmarks.surroundings import machine
from scripts.drawings.charts.curves import draw
from scripts.drawings.charts.numbers import short, ticks

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", growth.SCALES)
def test_every_scale_has_growing_sizes_and_figures_at_its_smallest(name):
    scale = import_module(f"benchmarks.scales.{name}").SCALE
    assert list(scale.sizes) == sorted(set(scale.sizes))
    if name not in ("payloads", "connections"):  # start processes, and take a second
        assert all(figure >= 0 for figure in scale.run(scale.sizes[0]).values())


def test_a_full_run_is_written_with_a_picture_for_each_scale(tmp_path, monkeypatch):
    renewed = []
    monkeypatch.setattr(page, "GROWTH", tmp_path / "growth.json")
    monkeypatch.setattr(page, "renew", lambda: renewed.append(1))
    monkeypatch.setattr(growth, "run_bounded", lambda *_: '{"things/s": 1234567}\n')
    assert growth.main([]) == 0
    assert renewed == [1]
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


def test_small_sizes_are_measured_and_drawn(tmp_path):
    target = tmp_path / "small.json"
    assert growth.main(["nodes", "--most", "10", "--json", str(target)]) == 0
    scale = json.loads(target.read_text())["scales"]["nodes"]
    assert [point["size"] for point in scale["points"]] == [2, 10]
    for point in scale["points"]:
        assert {"paths found/s", "bytes of the process", "cores busy"} <= point.keys()
    drawn = (tmp_path / "small-nodes.svg").read_text()
    assert "paths found" in drawn
    assert drawn.count("<polyline") >= 3


def drawn_of(points, title="title"):
    scale = {"title": title, "size": "things", "is_binary": False, "points": points}
    return draw({"machine": machine(), "versions": {}, "scales": {"things": scale}}, "things")


def test_a_flat_figure_a_zero_and_a_missing_one_can_be_drawn():
    points = [{"size": 1, "a/s": 0.0}, {"size": 1000, "a/s": 0.0, "bytes of all": 512.0}]
    drawn = ElementTree.fromstring(drawn_of(points, "a < title"))
    lines = [each.get("points") for each in drawn if each.tag.endswith("polyline")]
    assert lines[0] == ""
    assert len(lines[1].split()) == 1


@pytest.mark.parametrize(
    ("number", "is_binary", "text"),
    [
        (8, False, "8"),
        (999.9, False, "1 k"),
        (1_000_000, False, "1 M"),
        (16 << 20, True, "16 MiB"),
        (512, True, "512 B"),
        (3e15, False, "3e+03 T"),
    ],
)
def test_numbers_are_written_short(number, is_binary, text):
    assert short(number, is_binary=is_binary) == text


@pytest.mark.parametrize("name", ["throughput", "memory"])
def test_each_kind_of_figure_has_its_own_plot(name):
    points = [
        {"size": s, "told/s": 10.0 * s, "bytes of all": 1e6, "cores busy": 1} for s in (1, 9)
    ]
    drawn = drawn_of(points)
    assert drawn.count("<polyline") == 2, "cores busy is only told"
    assert name in drawn


@pytest.mark.parametrize(
    ("longest", "lines"),
    [
        (4, [0, 1, 2, 3, 4]),
        (0.236, [0, 0.1, 0.2]),
        (971_000, [0, 250_000, 500_000, 750_000]),
    ],
)
def test_lines_behind_bars_are_at_round_numbers(longest, lines):
    assert ticks(longest) == pytest.approx(lines)
