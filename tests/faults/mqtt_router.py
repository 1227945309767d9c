"""A process with an MQTT router and its journal: `python -m tests.faults.mqtt_router FOLDER`.

Prints its port, and ends when it is killed or its input ends.
"""

import sys

from callboard.mqtt import Router, RouterConfig


def main() -> None:
    """Run until the input ends."""
    with Router(RouterConfig(directory=sys.argv[1])) as router:
        print(router.port, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
