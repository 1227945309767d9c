"""Write all golden files anew, or only the given kinds: `python -m tests.golden log`."""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.golden.kinds import KINDS, made, name_of
from tests.golden.sample import write_files

for kind in KINDS:
    if not sys.argv[1:] or name_of(kind) in sys.argv[1:]:
        with TemporaryDirectory() as place:
            write_files(name_of(kind), dict(made(kind, Path(place))))
