"""Each process of the suite rewrites its share of the test files before it collects them.

pytest rewrites the assertions of a test file and keeps the result in `__pycache__`. In a new
checkout nothing is kept there, and all processes start at the same time with the same file:
each would rewrite all of them, which is 6 of the 15 s of processor time of its start.
"""

import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from _pytest.assertion import rewrite


def share_of(files: Iterable[Path], number: int, count: int) -> list[Path]:
    """Return the files of one of several processes; all shares are about as large."""
    by_size = sorted(files, key=lambda file: (file.stat().st_size, file), reverse=True)
    return by_size[number::count]


def keep_rewritten(file: Path, config: pytest.Config) -> bool:
    """Rewrite a file and keep the result, unless it is kept; return whether it was done.

    pytest has no public call for it; these are the steps of its own import hook.
    """
    folder = rewrite.get_cache_dir(file)
    kept = folder / f"{file.stem}{rewrite.PYC_TAIL}"
    if rewrite._read_pyc(file, kept) is not None or not rewrite.try_makedirs(folder):
        return False
    try:
        stat, code = rewrite._rewrite_test(file, config)
    except SyntaxError:  # the collection reports it
        return False
    rewrite._write_pyc(config.stash[rewrite.assertstate_key], code, stat, kept)
    return True


def rewrite_share(config: pytest.Config, files: Iterable[Path]) -> int:
    """Rewrite the share of this process of xdist; return the number of files rewritten."""
    worker = getattr(config, "workerinput", None)
    if worker is None or sys.dont_write_bytecode:
        return 0
    number, count = int(worker["workerid"].removeprefix("gw")), worker["workercount"]
    return sum(keep_rewritten(file, config) for file in share_of(files, number, count))
