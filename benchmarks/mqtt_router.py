"""A router as `callboard mqtt run` has it: prints its port and ends with stdin.

With an address, it has a bridge there.
"""

import sys

from callboard.mqtt import BridgeSettings, BridgeTopics, Router, RouterConfig
from callboard.mqtt.router.limits import Limits
from callboard.mqtt.service.router import tune_collector


def main() -> None:
    """Serve until stdin closes."""
    # Mosquitto queues without a limit here, too: nothing may be dropped while it is measured.
    topics = (BridgeTopics("load/#", "out"),)
    bridges = tuple(BridgeSettings(address, topics) for address in sys.argv[1:])
    config = RouterConfig(limits=Limits(segment_count=1_000), bridges=bridges)
    with Router(config) as router:
        tune_collector()
        print(router.port, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
