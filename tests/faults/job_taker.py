"""A process that takes a job, and acknowledges it when it is told: `job_taker ADDRESS`."""

import sys

from callboard import Node
from callboard.errors import CallboardError


def main() -> None:
    """Take one job, print it, wait for a line, and print the outcome of its ack."""
    with Node() as node:
        node.connect(sys.argv[1])
        job = node.queue("faults").take(visible_after=600.0).result(60)
        print(f"took {job.value} {job.attempt}", flush=True)
        sys.stdin.readline()
        try:
            job.ack().result(60)
            print("acknowledged", flush=True)
        except CallboardError as error:
            print(type(error).__name__, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
