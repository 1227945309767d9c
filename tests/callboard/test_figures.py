from types import SimpleNamespace

from callboard.figures import Figure, by_label, exposition, metrics_of, values_of

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
