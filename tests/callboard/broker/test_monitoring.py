"""Metrics for Prometheus, and the status as JSON."""

import json
from datetime import UTC, datetime

from callboard.broker.metrics import metrics_of, metrics_text
from callboard.broker.status_json import status_json, status_of


def peered(pair):
    here, there, port = pair
    subscriber = here.make_subscriber("/a")
    assert there.peer("127.0.0.1", port)
    there.publish_batch(("/a", 1), ("/a", 2), ("/b", 3))
    assert len(subscriber.get(2, 5.0)) == 2
    return here, there, subscriber


def test_the_text_is_what_prometheus_reads(pair):
    here, _, _ = peered(pair)
    here.name = 'a "name"\n'

    lines = metrics_text(here).splitlines()

    assert "# TYPE broker_connections gauge" in lines
    assert r'broker_connections{endpoint="a \"name\"\n",type="native"} 1' in lines
    assert r'broker_processed_messages_total{endpoint="a \"name\"\n",type="data"} 2' in lines
    assert any('type="routing-update"' in line for line in lines)
    assert all(line.startswith(("# ", "broker_")) for line in lines)


def test_processed_messages_are_counted_where_they_enter_and_where_they_arrive(pair):
    here, there, _ = peered(pair)

    counts = [
        {
            labels["type"]: value
            for metric in metrics_of(endpoint)
            if metric.name == "broker_processed_messages_total"
            for labels, value in metric.samples
        }
        for endpoint in (here, there)
    ]

    assert counts[0]["data"] == 2
    assert counts[1]["data"] == 3
    assert counts[0]["command"] == 0
    assert min(count["routing-update"] for count in counts) > 0


def test_metrics_can_be_chosen_by_prefix(pair):
    here, _, _ = pair

    text = metrics_text(here, prefixes=["broker_conn"])

    assert {line.split("{")[0] for line in text.splitlines() if line[0] != "#"} == {
        "broker_connections"
    }


def test_the_status_has_brokers_keys(pair):
    here, there, subscriber = peered(pair)
    publisher = there.make_publisher("/a")

    status = json.loads(status_json(there))

    assert status["id"] == there.node_id()
    assert status["cluster-node"] == there.node.name
    assert abs((datetime.now(UTC) - datetime.fromisoformat(status["time"])).days) < 1
    assert status["native-connections"] == 1
    assert status["peerings"][0]["id"] == here.node_id()
    assert status["peerings"][0]["status"] == "peered"
    assert status["published-via-async-msg"] == 3
    assert status["local-publishers"] == 1
    assert status["message-metrics"]["data"] == {"buffered": 0, "processed": 3}
    assert status_of(here)["local-subscribers"] == 1
    publisher.close()
    subscriber.close()
    assert status_of(there)["local-publishers"] == status_of(here)["local-subscribers"] == 0
