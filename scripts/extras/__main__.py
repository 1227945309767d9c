"""Install each extra alone into an empty environment, and run its page of the docs there.

`python -m scripts.extras [EXTRA…] [--python PYTHON]`: with `sql` in the environment and nothing
of the other extras, the programs of docs/log.md run; those that use `open_sql` must. Versions
come from the locks, so that a new release of a package cannot break an unrelated change.
"""

import argparse
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Final

from scripts.extras.programs import PROGRAMS
from scripts.installing import ROOT, Environment, find_uv, run, write_constraints

BUILD: Final = ROOT / "build" / "extras"
RUNNER: Final = Path(__file__).with_name("run_page.py")

#: Extras of 900 MB.
LEFT_OUT: Final = {"spark", "spark-jdk"}

#: Seconds that the programs of a page may take.
PAGE_LIMIT: Final = 180


def extras() -> list[str]:
    """Return the extras that users install."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [name for name in project["optional-dependencies"] if name not in LEFT_OUT]


def build_wheel() -> Path:
    """Build the wheel that a user would install."""
    folder = BUILD / "wheel"
    shutil.rmtree(folder, ignore_errors=True)
    build = [find_uv(), "--no-config", "build", "--quiet", "--wheel"]
    run(*build, "--out-dir", str(folder), str(ROOT))
    (wheel,) = folder.glob("*.whl")
    return wheel


def check(extra: str, python: str, requirement: tuple[Path, Path]) -> str:
    """Install an extra and run its programs; return one line about it.

    Args:
        extra: the extra.
        python: the interpreter.
        requirement: the wheel, and the locked versions.

    Raises:
        CalledProcessError: an installation or a program failed.
    """
    folder, (wheel, constraints) = BUILD / extra, requirement
    shutil.rmtree(folder, ignore_errors=True)
    start = time.monotonic()
    environment = Environment(folder / "environment", python, constraints)
    environment.install(f"callboard[{extra}] @ {wheel.as_uri()}")
    ready = time.monotonic()
    program = PROGRAMS[extra]
    (folder / "work").mkdir()
    page = [] if program.page is None else [str(ROOT / "docs" / program.page), *program.uses]
    (folder / "program.py").write_text(program.text)
    output = run(
        *(environment.python, "-I", str(RUNNER), str(folder / "program.py"), *page),
        cwd=folder / "work",
        limit=PAGE_LIMIT,
    )
    seconds = f"{ready - start:.1f} s to install, {time.monotonic() - ready:.1f} s to run"
    return f"{extra}: {output.splitlines()[-1]}; {seconds}"


def main() -> int:
    """Check the extras; return 1 if one of them does not run as installed."""
    parser = argparse.ArgumentParser(prog="python -m scripts.extras", description=__doc__)
    parser.add_argument("extra", nargs="*", help="the extras; all by default")
    parser.add_argument("--python", default=sys.executable, help="the interpreter")
    options = parser.parse_args()

    BUILD.mkdir(parents=True, exist_ok=True)
    requirement = build_wheel(), write_constraints(BUILD / "constraints.txt")
    failed = []
    for extra in options.extra or extras():
        try:
            print(check(extra, options.python, requirement), flush=True)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            failed.append(extra)
            print(f"{extra}: FAILED\n{error.output or error}", flush=True)
    if failed:
        print(f"failed: {', '.join(failed)}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
