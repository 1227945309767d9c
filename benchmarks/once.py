"""Run one subject of one measure once, in this process.

    python -m benchmarks.once MEASURE SUBJECT SHARE

The last line that it prints is `figure X`.
"""

import sys
from importlib import import_module


def main(measure: str, subject: str, share: str) -> None:
    """Do the work and print the figure."""
    program = import_module(f"benchmarks.{measure}").MEASURE.subject(subject)
    print("figure", program.run(float(share)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
