"""Spark's Python daemon, with what tasks need already there.

Spark runs a daemon for each of its kinds of workers, and these fork when there is work. Each
worker would then import pyarrow and what reads logs for itself, which takes longer than a whole
micro-batch. The only thread that this starts is that of jemalloc, which goes through forks.
"""

import gc
import os

from callboard.support.slots import TASK_MODULES


def main() -> None:
    """Import, then do what Spark's own daemon does."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # it would start its threads when loaded
    TASK_MODULES.load("spark")
    from pyspark.daemon import manager

    gc.freeze()
    manager()


if __name__ == "__main__":
    main()
