"""A process with an MQTT router and its journal.

`python -m tests.faults.mqtt_router FOLDER [ADDRESS]` prints its port, and ends when it is
killed or its input ends. With an address it has a bridge, which carries `load/#` there.
"""

import sys

from callboard.mqtt import BridgeSettings, BridgeTopics, Router, RouterConfig


def main() -> None:
    """Run until the input ends."""
    bridges = tuple(
        BridgeSettings(
            address,
            (BridgeTopics("load/#", "out", qos=2),),
            client_id="uplink",
            keep_alive=2,
            reconnect_delay=0.1,
        )
        for address in sys.argv[2:]
    )
    with Router(RouterConfig(directory=sys.argv[1], bridges=bridges)) as router:
        print(router.port, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
