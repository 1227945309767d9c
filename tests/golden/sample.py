"""The parts of a kind, and the files with its bytes."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

FILES = Path(__file__).parent / "files"
_WIDTH = 88
_SAME = object()


class Sample(NamedTuple):
    """A value, its writer and reader, and the value that is read if it differs."""

    value: Any
    write: Callable[[Any], bytes]
    read: Callable[[bytes], Any]
    found: Any = _SAME

    @property
    def expected(self) -> Any:
        return self.value if self.found is _SAME else self.found


class Folder(NamedTuple):
    """A directory that is created and opened, and perhaps continued.

    Attributes:
        make: writes it.
        look: opens it with the real class and returns its contents.
        expected: what `look` returns.
        go_on: writes more; returns what `look` returns afterwards.
        foreign: endings of files whose bytes depend on third-party libraries.
    """

    make: Callable[[Path], None]
    look: Callable[[Path], Any]
    expected: Any
    go_on: Callable[[Path], Any]
    foreign: tuple[str, ...] = ()


def plain(value: Any) -> Any:
    """Return the content of an object as comparable values."""
    if isinstance(value, str | bytes | int | float | None):
        return value
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    names = [
        name
        for kind in type(value).__mro__
        for name in getattr(kind, "__slots__", getattr(value, "__dict__", ()))
    ]
    return [type(value).__name__, {n: plain(getattr(value, n)) for n in names}]


def write_files(kind: str, blobs: dict[str, bytes]) -> None:
    """Store named bytes."""
    lines = []
    for name, data in blobs.items():
        text = data.hex()
        lines += [name, *("  " + text[i : i + _WIDTH] for i in range(0, len(text), _WIDTH))]
    (FILES / f"{kind}.hex").write_text("\n".join(lines) + "\n")


def read_files(kind: str) -> dict[str, bytes]:
    """Return what `write_files` stored."""
    texts: dict[str, list[str]] = {}
    name = ""
    for line in (FILES / f"{kind}.hex").read_text().splitlines():
        if line.startswith("  "):
            texts[name].append(line)
        else:
            texts[name := line] = []
    return {name: bytes.fromhex("".join(parts)) for name, parts in texts.items()}


def read_folder(path: Path) -> Iterable[tuple[str, bytes]]:
    """Return the files of a directory: their paths in it, and bytes."""
    for file in sorted(path.rglob("*")):
        if file.is_file():
            yield file.relative_to(path).as_posix(), file.read_bytes()


def write_folder(path: Path, blobs: dict[str, bytes]) -> None:
    """Make a directory of files again."""
    for name, data in blobs.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(data)
