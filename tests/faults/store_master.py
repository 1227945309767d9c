"""A process with a master in a SQLite file: `python -m tests.faults.store_master FILE`.

Prints its address, writes numbers from itself too, prints each one that is acknowledged, and
ends when it is killed or its input ends.
"""

import sys
import threading

from callboard import Node
from callboard.store import Backend, Store, attach_master
from callboard.topics.hub import Hub


def write(master: Store) -> None:
    """Write and count for ever; printed numbers are durable."""
    number = max((key for key in master.mapping() if isinstance(key, int)), default=0)
    while True:
        for _ in range(50):
            number += 1
            master.put(number, number)
        if master.await_idle(1.0):
            print(number, flush=True)


def main() -> None:
    """Run until the input ends."""
    with Node() as node:
        options = {"path": sys.argv[1]}
        master = attach_master(Hub.of(node), "things", Backend.SQLite, options)
        node.listen("127.0.0.1", 0)
        print(node.address, flush=True)
        threading.Thread(target=write, args=(master,), daemon=True).start()
        sys.stdin.read()


if __name__ == "__main__":
    main()
