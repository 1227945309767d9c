"""Implementation of `callboard new`: a small project whose tests pass."""

import importlib.metadata
import importlib.resources
import keyword
import os
import re
import sys
from pathlib import Path
from string import Template
from typing import Final

import callboard
from callboard.cli.cli_error import CliError, UsageError

TEMPLATES: Final = {
    "Makefile": "Makefile.txt",
    "local.mk": "local.mk.txt",
    "README.md": "README.md.txt",
    "pyproject.toml": "pyproject.toml.txt",
    "node.toml": "node.toml.txt",
    ".gitignore": "gitignore.txt",
    "{module}.py": "actor.py.txt",
    "tests/test_{module}.py": "test_actor.py.txt",
}

_NAME: Final = re.compile(r"[a-z][a-z0-9]*(?:[-_][a-z0-9]+)*")


def create(folder: Path) -> list[Path]:
    """Create a project in a new or empty folder; return its files.

    Raises:
        CliError: the name cannot be that of a package, the folder is not empty, it cannot be
            written, or callboard itself is not installed.
    """
    name = Path(os.path.abspath(folder)).name  # noqa: PTH100  (links may lead in a circle)
    module = name.replace("-", "_")
    _check_name(name, module)
    _check_installed()
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise UsageError(why=f"{folder} exists already", step="choose another name")
    values = {
        "name": name,
        "module": module,
        "python": sys.executable,
        "home": str(Path(callboard.__file__).resolve().parents[1]),
    }
    templates = importlib.resources.files("callboard.cli") / "project"
    paths = []
    for pattern, template in TEMPLATES.items():
        path = folder / pattern.format(module=module)
        text = Template((templates / template).read_text(encoding="utf-8")).substitute(values)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            reason = f"{path} cannot be written: {error.strerror}"
            raise CliError(why=reason, step="choose another place") from error
        paths.append(path)
    return paths


def _check_name(name: str, module: str) -> None:
    is_taken = module in sys.stdlib_module_names or module in {
        "callboard", "tests", "thespian", "pytest",
    }  # fmt: skip
    if _NAME.fullmatch(name) is None or keyword.iskeyword(module) or is_taken:
        step = "use lower-case letters, digits and -, and not the name of another module"
        raise UsageError(why=f"{name!r} cannot be the name of a project", step=step)


def _check_installed() -> None:
    """Check that callboard is installed: its metadata provide the `cluster` fixture."""
    try:
        importlib.metadata.version("callboard")
    except importlib.metadata.PackageNotFoundError as error:
        reason = "callboard is not installed in this environment, so a project could not use it"
        step = "run make setup in its sources, and .venv/bin/callboard new there"
        raise CliError(why=reason, step=step) from error
