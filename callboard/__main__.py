"""`python -m callboard` is the same as `callboard`."""

import sys

from callboard.cli import main

if __name__ == "__main__":
    sys.exit(main())
