"""Metrics that travel as messages."""

import datetime
import math

import pytest

from callboard.broker import BrokerOptions, Configuration, metric_topics
from callboard.broker.metric_topics import MetricImporter
from callboard.broker.monitoring import metrics_of, metrics_text
from callboard.commitlog import CommitLog
from callboard.figures import exposition
from callboard.model.errors import InvalidOption, InvalidTopic
from callboard.operation.metrics import node_metrics
from tests.proxies.cast import eventually


def configured(**options):
    made = BrokerOptions()
    for name, value in options.items():
        setattr(made, name, value)
    return Configuration(made)


@pytest.fixture
def collector(make_endpoint):
    """An endpoint that takes the metrics of others, and its port."""
    endpoint = make_endpoint(
        configured(metrics_import_topics=("/metrics",), metrics_endpoint_name="collector")
    )
    return endpoint, endpoint.listen("127.0.0.1", 0)


def test_one_endpoint_shows_the_metrics_of_all(make_endpoint, collector):
    shown, port = collector
    for name in ("one", "two"):
        endpoint = make_endpoint(
            configured(
                metrics_export_topic=f"/metrics/{name}",
                metrics_export_interval=0.02,
                metrics_export_prefixes=("broker_connections", "callboard_topic_p"),
                metrics_endpoint_name=name,
            )
        )
        assert endpoint.peer("127.0.0.1", port)

    def names():
        return {
            dict(labels)["endpoint"]
            for metric in metrics_of(shown)
            if metric.name == "broker_connections"
            for labels, _ in metric.samples
        }

    assert eventually(lambda: names() == {"collector", "one", "two"})
    text = metrics_text(shown)
    assert text.count("# TYPE broker_connections gauge") == 1
    assert 'callboard_topic_publishers{endpoint="two"} 0' in text
    assert 'callboard_topic_subscribers{endpoint="two"}' not in text


def test_the_lag_of_named_readers_travels_as_well(make_endpoint, collector, tmp_path):
    shown, port = collector
    with CommitLog(tmp_path / "orders", sync="none") as log, log.reader("billing") as billing:
        log.append_batch([1, 2, 3], topic="/t")
        billing.read(1)
        billing.commit()
        options = {"metrics_export_topic": "/metrics/one", "metrics_export_interval": 0.02}
        endpoint = make_endpoint(
            configured(
                **options,
                metrics_export_prefixes=("callboard_log_reader_lag",),
                metrics_endpoint_name="one",
            )
        )
        assert endpoint.peer("127.0.0.1", port)
        lag = 'callboard_log_reader_lag{log="%s",reader="billing"} 2' % (tmp_path / "orders")
        assert eventually(lambda: lag in metrics_text(shown))


def test_a_node_shows_what_its_endpoint_was_told(make_endpoint):
    endpoint = make_endpoint(configured(metrics_import_topics=("/metrics",)))
    (importer,) = endpoint._metric_topics

    importer.take([("/metrics", GOOD)])

    assert "a_total" in {metric.name for metric in node_metrics(endpoint.node)}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, "nan", 1e308])
def test_odd_numbers_of_others_do_not_take_the_page_away(make_endpoint, value):
    endpoint = make_endpoint(configured(metrics_import_topics=("/metrics",)))
    (importer,) = endpoint._metric_topics

    importer.take([("/metrics", ("x", NOW, (("odd", "gauge", "", (({}, value),)),)))])

    shown = exposition(node_metrics(endpoint.node))
    (line,) = [line for line in shown.splitlines() if line.startswith("odd ")]
    assert line.split()[1] in ("NaN", "+Inf", "-Inf", str(int(1e308)))


def test_no_more_is_published_or_shown_after_the_end(make_endpoint, collector):
    shown, port = collector
    endpoint = make_endpoint(
        configured(metrics_export_topic="/metrics", metrics_export_interval=0.01)
    )
    assert endpoint.peer("127.0.0.1", port)
    assert eventually(lambda: len(shown._metric_topics[0].metrics()))

    endpoint.shutdown()
    shown.shutdown()

    assert endpoint.hub.metric_sources == shown.hub.metric_sources == []


NOW = datetime.datetime.now(datetime.UTC)
GOOD = ("x", NOW, (("a_total", "counter", "text", (({"l": "v"}, 1),)),))


@pytest.mark.parametrize(
    "value",
    [
        5,
        ("x", NOW),
        (7, NOW, ()),
        ("x", NOW, (("a", "histogram", "", ()),)),
        ("x", NOW, (("bad name", "gauge", "", ()),)),
        ("x", NOW, (("a", "gauge", "", (({"bad label": "v"}, 1),)),)),
        ("x", NOW, (("a", "gauge", "", (({}, "much"),)),)),
        ("x", NOW, (("a", "gauge", "", 5),)),
        ("x", NOW, (("a", "gauge", "", (({}, 10**400),)),)),
    ],
)
def test_what_is_no_metrics_is_counted_and_dropped(make_endpoint, value):
    importer = MetricImporter(make_endpoint().hub, ("/metrics",))

    importer.take([("/metrics", value), ("/metrics", GOOD)])

    assert importer.refused == 1
    assert [metric.name for metric in importer.metrics()] == ["a_total"]


def test_what_was_told_long_ago_or_by_too_many_is_not_shown(make_endpoint, monkeypatch):
    importer = MetricImporter(make_endpoint().hub, ("/metrics",))
    now = [100.0]
    monkeypatch.setattr(importer, "_now", lambda: now[0])
    monkeypatch.setattr(metric_topics, "NAMES_LIMIT", 1)

    importer.take([("/metrics", GOOD), ("/metrics", ("y", *GOOD[1:]))])
    assert (len(importer.metrics()), importer.refused) == (1, 1)
    now[0] += metric_topics.STALE_AFTER + 1

    assert importer.metrics() == []
    importer.take([("/metrics", ("y", *GOOD[1:]))])
    assert len(importer.metrics()) == 1


def test_a_topic_or_an_interval_that_cannot_be_is_refused(make_endpoint):
    with pytest.raises(InvalidOption, match="at least"):
        configured(metrics_export_interval=0.0)
    with pytest.raises(InvalidTopic):
        make_endpoint(configured(metrics_export_topic="x" * 70_000))
