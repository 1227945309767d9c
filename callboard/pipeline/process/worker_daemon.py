"""Spark's Python daemon, with the modules for tasks imported in advance.

Spark runs one daemon per kind of worker, and forks workers from it. Otherwise each worker would
import pyarrow and the log reader itself, which takes longer than a micro-batch. The only thread
that the imports start is jemalloc's, which survives a fork.
"""

import gc
import os

from callboard.support.slots import TASK_MODULES


def main() -> None:
    """Import, then run Spark's own daemon."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # else it starts threads on import
    TASK_MODULES.load("spark")
    from pyspark.daemon import manager

    gc.freeze()
    manager()


if __name__ == "__main__":
    main()
