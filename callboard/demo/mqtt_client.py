"""An MQTT client of the demo: `python -m callboard.demo.mqtt_client PORT NAME`.

It publishes readings through paho-mqtt like any other MQTT program: JSON lines with a topic and
a reading on its standard input become messages with QoS 1. When the input ends, it waits until
the router has acknowledged all messages, prints their number, and ends.
"""

import json
import sys
from typing import Final

import paho.mqtt.client as paho

#: Seconds to wait for acknowledgements after the end of the input.
LAST_WORDS: Final = 20.0


def main(arguments: list[str]) -> int:
    """Publish until the input ends; return the exit code."""
    port, name = arguments
    client = paho.Client(
        paho.CallbackAPIVersion.VERSION2, client_id=f"sensors-{name}", protocol=paho.MQTTv5
    )
    client.connect("127.0.0.1", int(port))
    client.loop_start()
    published = 0
    last = None
    for line in sys.stdin:
        topic, reading = json.loads(line)
        last = client.publish(topic, json.dumps(reading), qos=1)
        published += 1
    if last is not None:
        last.wait_for_publish(LAST_WORDS)
    client.disconnect()
    client.loop_stop()
    print(published, flush=True)  # noqa: T201  # read by the parent
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
