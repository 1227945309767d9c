"""Which callboard this is."""

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def read_version() -> str:
    """Return the version of the installed package, or of the source folder it runs from."""
    try:
        return version("callboard")
    except PackageNotFoundError:
        import tomllib

        project = Path(__file__).parents[2] / "pyproject.toml"
        found: str = tomllib.loads(project.read_text(encoding="utf-8"))["project"]["version"]
        return found
