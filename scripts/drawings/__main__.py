"""Write all drawings and charts, or tell which ones are not what their sources make.

python -m scripts.drawings [--check]
"""

import sys
from collections.abc import Sequence

from scripts.drawings.all import pictures
from scripts.drawings.place import ROOT


def main(arguments: Sequence[str]) -> int:
    """Write what differs; with `--check` only tell, and return 1 if something does."""
    differing = [
        path
        for path, content in pictures().items()
        if not path.exists() or path.read_text() != content
    ]
    for path in differing:
        print(path.relative_to(ROOT))
    if arguments == ["--check"]:
        return int(bool(differing))
    written = pictures()
    for path in differing:
        path.write_text(written[path])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
