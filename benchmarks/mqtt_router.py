"""A router as `callboard mqtt run` has it: prints its port and ends with stdin."""

import sys

from callboard.mqtt import Router
from callboard.mqtt.collecting import tune_collector


def main() -> None:
    """Serve until stdin closes."""
    with Router() as router:
        tune_collector()
        print(router.port, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
