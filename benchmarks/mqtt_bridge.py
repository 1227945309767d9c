"""A bridge over a link with a delay of 50 ms: messages of 64 bytes with QoS 1.

The far broker is Mosquitto, behind a link whose bytes arrive 50 ms later in both directions. It
has no limit for unacknowledged messages, because Mosquitto's bridge ignores this limit, and
ours obeys it. The near one is callboard's router, or Mosquitto. Messages for each second that
arrive at a subscriber of the far broker.
"""

import sys
import tempfile
from pathlib import Path

from benchmarks.measure import Measure, Subject
from benchmarks.peers.mqtt_brokers import (
    MOSQUITTO,
    SETTINGS,
    free_port,
    listening,
    mosquitto,
    prepare_mosquitto,
)
from benchmarks.processes import printed_rate, serving

PEERS = Path(__file__).with_name("peers")
DELAY = "0.05"
COUNT = 50_000

BRIDGE = """\
connection up
address 127.0.0.1:{link}
topic load/# out 1
cleansession false
bridge_protocol_version mqttv50
notifications false
"""


def through(broker: str, share: float) -> float:
    """Return the messages per second through the bridge of a broker."""
    count = str(max(100, int(COUNT * share)))
    slow_link = [sys.executable, str(PEERS / "slow_link.py")]
    load = [sys.executable, str(PEERS / "mqtt_bridge_load.py")]
    with mosquitto(window=0) as (far, _), serving([*slow_link, str(far), DELAY]) as (_, link):
        if broker == "callboard":
            near = [sys.executable, "-m", "benchmarks.mqtt_router", f"127.0.0.1:{link}"]
            with serving(near) as (_, port):
                return printed_rate([*load, port, str(far), count])
        with tempfile.TemporaryDirectory() as folder:
            free, settings = free_port(), Path(folder) / "mosquitto.conf"
            settings.write_text(
                SETTINGS.format(port=free, window=1000) + BRIDGE.format(link=link)
            )
            with listening([MOSQUITTO, "-c", str(settings)], free):
                return printed_rate([*load, str(free), str(far), count])


MEASURE = Measure(
    title="MQTT bridge over a link with 50 ms",
    unit="messages/s",
    subjects=(
        Subject("callboard", lambda share: through("callboard", share), prepare_mosquitto),
        Subject(
            "mosquitto",
            lambda share: through("mosquitto", share),
            prepare_mosquitto,
            "callboard",
        ),
    ),
)
