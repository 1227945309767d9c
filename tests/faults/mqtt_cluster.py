"""A process with a router of a cluster: `python -m tests.faults.mqtt_cluster FOLDER SEED`.

Its node links with the one at SEED. Prints its port, and ends when it is killed or its input
ends.
"""

import sys

from callboard import Node
from callboard.mqtt import Router, RouterConfig


def main() -> None:
    """Run until the input ends."""
    config = RouterConfig(directory=sys.argv[1], sys_interval=0)
    with Node("killed") as node, Router(config, node=node) as router:
        node.connect(sys.argv[2])
        print(router.port, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
