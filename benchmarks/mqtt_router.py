"""A router for benchmarks: prints its port and ends with stdin."""

import sys

from callboard.mqtt import Router


def main() -> None:
    """Serve until stdin closes."""
    with Router() as router:
        print(router.port, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
