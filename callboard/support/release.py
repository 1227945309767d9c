"""The release and the build of this program: what nodes tell each other about themselves."""

from functools import cache
from pathlib import Path
from typing import Final

#: The version of `pyproject.toml`; a constant, since reading metadata takes longer than a node.
RELEASE: Final = "0.2.0.dev0"

#: Characters of a build: enough of a digest to tell builds apart.
BUILD_SIZE: Final = 12

#: Bytes of the largest file that is read for the name of a build.
_LIMIT: Final = 1 << 20


@cache
def build_id() -> str:
    """Return what tells builds of one release apart; empty where nothing does.

    In a checkout it is the start of the commit; where a wheel is installed, of the digest over
    its list of files and their digests.
    """
    package = Path(__file__).resolve().parents[1]
    try:
        git = package.parent / ".git"
        if git.exists():
            return _commit(git)[:BUILD_SIZE]
        return _digest_of_wheel(package.parent)[:BUILD_SIZE]
    except (OSError, ValueError):
        return ""


def _read(path: Path) -> str:
    with path.open(encoding="utf-8") as file:
        return file.read(_LIMIT)


def _commit(git: Path) -> str:
    """Return the commit that a checkout stands on, as far as its files tell."""
    if git.is_file():  # a worktree
        git = git.parent / _read(git).removeprefix("gitdir:").strip()
    head = _read(git / "HEAD").strip()
    if not head.startswith("ref:"):
        return head
    name = head.removeprefix("ref:").strip()
    shared = git / "commondir"
    place = git / _read(shared).strip() if shared.is_file() else git
    if (place / name).is_file():
        return _read(place / name).strip()
    packed = place / "packed-refs"
    lines = _read(packed).splitlines() if packed.is_file() else []
    return next((line.split()[0] for line in lines if line.endswith(f" {name}")), "")


def _digest_of_wheel(folder: Path) -> str:
    """Return a digest over the list of files that was installed with a wheel."""
    from hashlib import sha256

    record = next(folder.glob("callboard-*.dist-info/RECORD"), None)
    return "" if record is None else sha256(record.read_bytes()).hexdigest()
