import gc
from types import SimpleNamespace

from callboard.figures import (
    Figure,
    Metric,
    ProcessFigures,
    by_label,
    exposition,
    merged,
    metrics_of,
    process_metrics,
    values_of,
)

TABLE = (
    Figure("sent_total", "Messages sent.", "counters.sent"),
    Figure("open", "Links.", lambda source: len(source.links)),
    Figure("ends_total", "By reason.", lambda source: by_label("reason", source.ends)),
)
SOURCE = SimpleNamespace(
    counters=SimpleNamespace(sent=5), links=["a", "b"], ends={"normal": 1, "killed": 2}
)


def test_a_table_is_read_as_metrics_with_labels_before_those_of_each_sample():
    assert exposition(metrics_of(TABLE, SOURCE, (("node", "n"),))).splitlines() == [
        "# HELP sent_total Messages sent.",
        "# TYPE sent_total counter",
        'sent_total{node="n"} 5',
        "# HELP open Links.",
        "# TYPE open gauge",
        'open{node="n"} 2',
        "# HELP ends_total By reason.",
        "# TYPE ends_total counter",
        'ends_total{node="n",reason="normal"} 1',
        'ends_total{node="n",reason="killed"} 2',
    ]


def test_a_table_is_read_as_plain_numbers():
    assert values_of(TABLE[:2], SOURCE) == {"sent_total": 5, "open": 2}


def test_samples_of_one_name_are_merged_if_they_are_of_one_kind():
    first, other = (
        Metric("a", "gauge", "A.", [((), 1)]),
        Metric("a", "counter", "A.", [((), 2)]),
    )

    assert merged([first, Metric("b", "gauge", "B."), first, other]) == [
        Metric("a", "gauge", "A.", [((), 1), ((), 1)]),
        Metric("b", "gauge", "B."),
    ]
    assert first.samples == [((), 1)]


class Door:
    def __init__(self, name):
        self.name, self.opened = name, len(name)


def test_figures_of_objects_that_are_open_are_among_those_of_the_process():
    table = (Figure("opened", "Times that it was opened.", "opened"),)
    figures = ProcessFigures(table, lambda door: ((("door", door.name),), door), AttributeError)
    doors = [Door("north"), Door("east")]

    for door in doors:
        figures.add(door)
    east, north = ((("door", "east"),), 4), ((("door", "north"),), 5)
    assert next(m for m in process_metrics() if m.name == "opened").samples == [east, north]

    del doors[0].opened  # as for a log that cannot be read
    assert figures.metrics()[0].samples == [east]

    figures.discard(doors[1])
    assert figures.metrics() == []


def test_an_object_that_is_no_longer_used_is_left_out():
    figures = ProcessFigures((Figure("opened", "Times.", "opened"),), lambda door: ((), door))
    figures.add(Door("north"))
    gc.collect()

    assert figures.metrics() == []
