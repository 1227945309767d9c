"""The demo's readings by MQTT, on a real node with a real client process."""

import pytest

from callboard import Node
from callboard.commitlog import LogReader
from callboard.demo import mqtt_side
from callboard.demo.mqtt_side import MqttSide
from callboard.demo.story import describe


def test_readings_go_through_paho_and_are_recorded_beside_the_others(tmp_path):
    with Node("A") as node:
        side = MqttSide(node, "A", tmp_path / "log")
        for number in range(200):
            side.pass_on("/metrics/A/cpu", [number, 1.5, {"core 0": 2.0}])
        side.close()
        side.close()
        told = side.report()
        side.pass_on("/metrics/A/cpu", [0, 0.0, {}])

    assert told == {"passed": 200, "published": 200, "brought": 200, "recorded": 200}
    with LogReader(tmp_path / "log") as reader:
        first = next(iter(reader.read(0)))
    assert first.topic == "/mqtt/metrics/A/cpu"
    said, _ = describe("A", {"kind": "mqtt_over", **told})
    assert said.startswith("MQTT: paho published 200 readings of A's sensors")


def test_without_paho_the_demo_says_so_in_one_line(monkeypatch):
    monkeypatch.setattr(mqtt_side, "CLIENT", "no_such_package")

    assert not mqtt_side.is_possible()
    said, _ = describe("A", {"kind": "mqtt_missing"})
    assert "pip install 'callboard[mqtt]'" in said


def test_a_client_that_hangs_does_not_hold_the_demo(tmp_path, monkeypatch):
    monkeypatch.setattr(mqtt_side, "LAST_WORDS", 0.2)
    with Node("A") as node:
        side = MqttSide(node, "A", tmp_path / "log")
        side._client.send_signal(19)  # SIGSTOP
        side.pass_on("/metrics/A/cpu", [0, 0.0, {}])
        side.close()

        assert side.report()["published"] == 0
        assert side._client.poll() is not None


@pytest.fixture(autouse=True)
def _paho():
    pytest.importorskip("paho.mqtt.client")
