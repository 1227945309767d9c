"""The release and the build of this program, which nodes exchange in their handshakes."""

from functools import cache
from pathlib import Path
from typing import Final

#: The version in `pyproject.toml`. A constant, because reading it from metadata takes longer
#: than importing a node.
RELEASE: Final = "0.2.0.dev0"

#: Characters of a build id: enough of a digest to distinguish builds.
BUILD_SIZE: Final = 12

#: Bytes of the largest file that is read for the build id.
_LIMIT: Final = 1 << 20


@cache
def build_id() -> str:
    """Return an id that distinguishes builds of one release; empty if there is none.

    In a checkout it is the start of the commit id. For an installed wheel it is the start of a
    digest of the list of files with their digests.
    """
    package = Path(__file__).resolve().parents[2]
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
    """Return the current commit of a checkout; "" if its files do not contain it."""
    if git.is_file():  # a worktree
        git = git.parent / _read(git).removeprefix("gitdir:").strip()
    head = _read(git / "HEAD").strip()
    if not head.startswith("ref:"):
        return head
    name = head.removeprefix("ref:").strip()
    shared = git / "commondir"
    folder = git / _read(shared).strip() if shared.is_file() else git
    if (folder / name).is_file():
        return _read(folder / name).strip()
    packed = folder / "packed-refs"
    lines = _read(packed).splitlines() if packed.is_file() else []
    return next((line.split()[0] for line in lines if line.endswith(f" {name}")), "")


def _digest_of_wheel(folder: Path) -> str:
    """Return a digest of the list of files of an installed wheel."""
    from hashlib import sha256

    record = next(folder.glob("callboard-*.dist-info/RECORD"), None)
    return "" if record is None else sha256(record.read_bytes()).hexdigest()
