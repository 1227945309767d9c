"""Measure one scale at one size, in this process.

    python -m benchmarks.growth_once SCALE SIZE

The last line that it prints is the figures, as JSON.
"""

import json
import sys
from importlib import import_module


def main(scale: str, size: str) -> None:
    """Do the work and print the figures."""
    print(json.dumps(import_module(f"benchmarks.scales.{scale}").SCALE.run(int(size))))


if __name__ == "__main__":
    main(*sys.argv[1:])
