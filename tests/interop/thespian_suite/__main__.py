"""Runs Thespian's suite in several processes at once, since it mostly sleeps, and adds up.

python -m tests.interop.thespian_suite [--processes 6] [arguments for pytest]
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[2]

FLOOR = 500
"""Tests that have to pass, so that the list of what does not apply cannot grow unseen."""

TIMEOUT = 60
"""Seconds for one test."""


def suite_folder():
    """Return where Thespian's tests are installed, without importing them."""
    spec = find_spec("thespian")
    assert spec is not None
    return Path(spec.origin).parent / "test"


def surroundings():
    """Return the environment of the tests: the suite relies on buffered output of children."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return kept | {"PYTHONPATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


def start(part, parts, counts, extra):
    folder = suite_folder()
    command = [
        sys.executable, "-m", "pytest", "--config-file", os.devnull, "--rootdir", str(folder),
        "-p", "no:cacheprovider", "-p", "pytest_timeout", f"--timeout={TIMEOUT}",
        "-p", "tests.interop.thespian_suite.plugin", "-q", "-ra", "--tb=short", "--no-header",
        f"--part={part}/{parts}", f"--counts={counts}", *extra, "--pyargs", "thespian.test",
    ]  # fmt: skip
    return subprocess.Popen(
        command,
        cwd=ROOT,
        env=surroundings(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run(parts, extra):
    """Run all parts; return the sum of their counts."""
    total = Counter()
    with tempfile.TemporaryDirectory() as folder:
        counts = [Path(folder) / f"{part}.json" for part in range(parts)]
        processes = [start(part, parts, counts[part], extra) for part in range(parts)]
        outputs = [process.communicate()[0] for process in processes]
        for process, output, path in zip(processes, outputs, counts, strict=True):
            found = json.loads(path.read_text()) if path.exists() else {"failed": 1}
            total.update(found)
            if process.returncode != 0 or found.get("failed"):
                print(output)
    return total


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, default=6)
    options, extra = parser.parse_known_args()
    began = time.monotonic()
    total = run(options.processes, extra)
    print(
        f"Thespian's suite: {total['passed']} passed, {total['failed']} failed, "
        f"{total['not applicable']} not applicable, in {time.monotonic() - began:.0f} s"
    )
    if not extra and total["passed"] < FLOOR:
        print(f"at least {FLOOR} have to pass")
        return 1
    return 1 if total["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
