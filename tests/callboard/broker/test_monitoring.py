"""Metrics for Prometheus, the status as JSON, and both over HTTP."""

import json
import socket
import urllib.error
import urllib.request
from datetime import UTC, datetime

import pytest

from callboard import Node
from callboard.broker import BrokerOptions, Configuration, Endpoint
from callboard.broker.monitoring import metrics_of, metrics_text, status_json, status_of
from callboard.broker.options import InvalidOption
from callboard.operation import HealthServer
from callboard.topics.monitoring import status_page


def peered(pair):
    here, there, port = pair
    subscriber = here.make_subscriber("/a")
    assert there.peer("127.0.0.1", port)
    there.publish_batch(("/a", 1), ("/a", 2), ("/b", 3))
    assert len(subscriber.get(2, 5.0)) == 2
    return here, there, subscriber


def test_the_text_is_what_prometheus_reads(pair):
    here, _, _ = peered(pair)
    here.hub.name = 'a "name"\n'

    lines = metrics_text(here).splitlines()

    assert "# TYPE broker_connections gauge" in lines
    assert r'broker_connections{endpoint="a \"name\"\n",type="native"} 1' in lines
    assert r'broker_processed_messages_total{endpoint="a \"name\"\n",type="data"} 2' in lines
    assert any('type="routing-update"' in line for line in lines)
    assert all(line.startswith(("# ", "broker_", "callboard_topic_")) for line in lines)


def test_processed_messages_are_counted_where_they_enter_and_where_they_arrive(pair):
    here, there, _ = peered(pair)

    counts = [
        {
            dict(labels)["type"]: value
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


def served(**values):
    options = BrokerOptions()
    for name, value in values.items():
        setattr(options, name, value)
    return Configuration(options)


def get(url):
    with urllib.request.urlopen(url, timeout=10) as answer:
        return answer.read().decode(), answer.headers["Content-Type"]


def test_an_endpoint_serves_nothing_unless_told_to(make_endpoint):
    assert make_endpoint().metrics_url == ""


def test_an_endpoint_serves_its_metrics_and_its_status(make_endpoint):
    endpoint = make_endpoint(served(metrics_port=0, metrics_endpoint_name="worker-1"))
    endpoint.publish("/a", 1)
    endpoint.hub.flushed(10)

    text, kind = get(f"{endpoint.metrics_url}/metrics")
    assert kind == "text/plain; version=0.0.4; charset=utf-8"
    assert 'broker_processed_messages_total{endpoint="worker-1",type="data"} 1\n' in text
    assert 'callboard_topic_published_total{endpoint="worker-1"} 1\n' in text
    assert "callboard_actors" not in text
    text, kind = get(f"{endpoint.metrics_url}/v1/status/json")
    assert kind == "application/json"
    assert json.loads(text)["id"] == endpoint.node_id()
    assert json.loads(text)["cluster-node"] == "worker-1"


def test_the_environment_stands_above_the_options(monkeypatch, make_endpoint):
    monkeypatch.setenv("BROKER_METRICS_PORT", "0")
    monkeypatch.setenv("BROKER_METRICS_ADDRESS", "localhost")
    ignoring = served(ignore_broker_conf=True)

    endpoint = make_endpoint(served(metrics_address="192.0.2.1"))

    assert endpoint.metrics_url.startswith("http://127.0.0.1:")
    assert make_endpoint(ignoring).metrics_url == ""


@pytest.mark.parametrize("port", ["http", "-2", "65536", "9.5", "²"])
def test_a_port_of_the_environment_that_is_none_is_refused(monkeypatch, port):
    monkeypatch.setenv("BROKER_METRICS_PORT", port)

    with pytest.raises(InvalidOption, match="BROKER_METRICS_PORT"):
        Endpoint()


def test_a_port_that_is_taken_is_logged_and_the_endpoint_works(make_endpoint, caplog):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        endpoint = make_endpoint(served(metrics_port=taken.getsockname()[1]))

    assert "cannot serve metrics at 127.0.0.1:" in caplog.text
    assert endpoint.metrics_url == ""
    assert endpoint.listen("127.0.0.1", 0) > 0


def test_an_address_that_is_none_is_logged(make_endpoint, caplog):
    endpoint = make_endpoint(served(metrics_port=0, metrics_address="a..b"))

    assert "cannot serve metrics at a..b:0" in caplog.text
    assert endpoint.metrics_url == ""


def test_the_port_is_closed_at_the_end():
    with Endpoint(served(metrics_port=0)) as endpoint:
        url = f"{endpoint.metrics_url}/metrics"

    with pytest.raises(urllib.error.URLError):
        get(url)


def test_the_health_of_a_node_includes_its_topics():
    with Node("shop") as node, HealthServer(node) as health:
        with pytest.raises(urllib.error.HTTPError, match="404"):
            get(f"{health.url}/v1/status/json")
        assert "broker_" not in get(f"{health.url}/metrics")[0]

        subscribers = [Endpoint(node=node).make_subscriber("/a") for _ in range(2)]
        publisher = Endpoint(node=node).make_publisher("/a")

        text, _ = get(f"{health.url}/metrics")
        assert 'broker_connections{endpoint="shop",type="native"} 0\n' in text
        assert "callboard_actors 0\n" in text
        assert text.count("# TYPE broker_connections") == 1
        status = json.loads(get(f"{health.url}/v1/status/json")[0])
        assert (status["local-subscribers"], status["local-publishers"]) == (2, 1)
        for member in (*subscribers, publisher):
            member.close()
        status = json.loads(get(f"{health.url}/v1/status/json")[0])
        assert (status["local-subscribers"], status["local-publishers"]) == (0, 0)

    # the hub ended with its node
    assert status_page(node).status == 404
