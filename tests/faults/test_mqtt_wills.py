"""Wills of clients of an MQTT router that is killed."""

import time
from pathlib import Path

from callboard.mqtt.wire.packet import V5, Publish, Will
from callboard.mqtt.wire.properties import Properties
from tests.callboard.mqtt.caller import Caller
from tests.faults.test_mqtt_kill import start

LASTING = Properties(session_expiry_interval=1000)
DELAY = 2


def lasting(port: int, name: str, will: Will | None = None) -> Caller:
    """Connect a client whose session lasts."""
    return Caller(port, name, V5, clean_start=False, properties=LASTING, will=will)


def will_of(name: str, delay: int = 0) -> Will:
    """Return a will that says whose it is."""
    properties = Properties(will_delay_interval=delay) if delay else None
    return Will(f"will/{name}", name.encode(), 1, properties=properties)


def test_wills_are_said_after_sigkill_when_they_are_due(tmp_path: Path) -> None:
    process, port = start(tmp_path / "journal")
    try:
        watcher = lasting(port, "watcher")
        watcher.subscribe("will/#", qos=1)
        plain = Caller(port, "plain", will=will_of("plain"))
        clients = [
            watcher,
            plain,
            *(lasting(port, name, will_of(name, DELAY)) for name in ("late", "back")),
        ]
    finally:
        process.kill()
        process.communicate()
    for client in clients:
        client.socket.close()

    process, port = start(tmp_path / "journal")
    try:
        began = time.monotonic()
        with lasting(port, "watcher") as watcher, lasting(port, "back"):
            heard = watcher.hear_packets(2)
            waited = time.monotonic() - began
            watcher.socket.settimeout(0.5)
            try:
                heard += watcher.hear_packets(1)
            except TimeoutError:
                pass
    finally:
        process.kill()
        process.communicate()

    assert [each.payload for each in heard if isinstance(each, Publish)] == [b"plain", b"late"]
    assert waited > DELAY - 1.5
