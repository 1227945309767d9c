# ruff: noqa: INP001  # a program, which is put where spark-submit finds it
"""What spark-submit runs: `callboard pipeline` with the arguments behind this file.

spark-submit --master MASTER … pipeline.py run rates --log grpc+tls://HOST:8815/metrics …
"""

import sys

from callboard.cli import main

if __name__ == "__main__":
    sys.exit(main(["pipeline", *sys.argv[1:]]))
