"""Empty environments for packages under test: made by uv, filled from the locks.

`scripts.extras` and `scripts.release` install the wheel as a user does, with nothing of this
checkout in reach.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]

#: Variables that lead Python to this checkout.
_OWN: Final = {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PYTHONDONTWRITEBYTECODE"}

_LOCKED = re.compile(r"^[\w.-]+==[^\\\n]+", re.MULTILINE)


def run(*command: str, cwd: Path = ROOT, limit: float = 600, **environment: str) -> str:
    """Run a command and return its output.

    Raises:
        CalledProcessError: the command failed; the error has the output.
        TimeoutExpired: the command took longer than `limit` seconds.
    """
    done = subprocess.run(
        command,
        cwd=cwd,
        timeout=limit,
        text=True,
        check=True,
        env=_outer_environment() | environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    return done.stdout


def _outer_environment() -> dict[str, str]:
    """Return the environment variables without those that lead Python to this checkout."""
    return {name: text for name, text in os.environ.items() if name not in _OWN}


def find_uv() -> str:
    """Return the path of uv, which is installed from its lock on first use."""
    folder = ROOT / "build" / "lock"
    if not (folder / "bin" / "uv").exists():
        locked = ["--require-hashes", "--target", str(folder)]
        requirements = str(ROOT / "requirements" / "bootstrap.txt")
        run(sys.executable, "-m", "pip", "install", "--quiet", *locked, "-r", requirements)
    return str(folder / "bin" / "uv")


def write_constraints(path: Path) -> Path:
    """Write the locked versions, without hashes, to a file of constraints for pip."""
    texts = [(ROOT / "requirements" / f"{name}.txt").read_text() for name in ("spark", "dev")]
    lines = {line for text in texts for line in _LOCKED.findall(text)}
    path.write_text("\n".join(sorted(lines)) + "\n")
    return path


class Environment:
    """A new virtual environment that holds only what is installed into it.

    Attributes:
        python: path of its interpreter.
    """

    def __init__(self, folder: Path, python: str, constraints: Path) -> None:
        """Create it in a folder, which is emptied first.

        Args:
            folder: the folder of the environment.
            python: name or path of the interpreter that it is made from.
            constraints: versions of the packages that are installed later.
        """
        self._uv, self._constraints = find_uv(), constraints
        self.folder = folder
        shutil.rmtree(folder, ignore_errors=True)
        run(self._uv, "--no-config", "venv", "--quiet", "--python", python, str(folder))
        self.python = str(folder / "bin" / "python")

    def install(self, *requirements: str, upgrade: bool = False) -> None:
        """Install packages at their locked versions."""
        options = ["--quiet", "--python", self.python, "--constraint", str(self._constraints)]
        if upgrade:
            options.append("--upgrade")
        run(self._uv, "--no-config", "pip", "install", *options, *requirements)

    def check(self) -> None:
        """Fail if a package lacks one that it requires, as `pip check` does."""
        run(self._uv, "--no-config", "pip", "check", "--python", self.python)
