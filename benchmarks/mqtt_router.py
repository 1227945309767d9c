"""A router as `callboard mqtt run` has it: prints its port and ends with stdin."""

import sys

from callboard.mqtt import Router, RouterConfig
from callboard.mqtt.router.limits import Limits
from callboard.mqtt.service.router import tune_collector


def main() -> None:
    """Serve until stdin closes."""
    # Mosquitto queues without a limit here, too: nothing may be dropped while it is measured.
    config = RouterConfig(limits=Limits(segment_count=1_000))
    with Router(config) as router:
        tune_collector()
        print(router.port, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
