"""The manifest of a backup: `manifest.json`, the file that makes a folder a backup.

It is written last, and it has a checksum of its own. A folder without it is an unfinished
backup, and neither verified nor restored.

    {"sum": SHA-256 of the JSON of "backup",
     "backup": {"format": 1, "release": "0.2.0", "node": "shop", "machine": "host-a",
                "time": "2026-11-30T03:00:00+00:00", "base": "/srv/shop/data",
                "seconds": 1.2, "held_ms": 0.8,
                "parts": [{"kind": "log", "name": "logs/cpu", "facts": {"start": 0, "end": 9},
                           "files": [["00000000000000000000.log", 4096, SHA-256], …]}, …],
                "left_out": [["postgresql://shop", "why, and what to do instead"], …]}}

The files of a part are in the folder `data/NAME`, or the part is the single file `data/NAME`.
"""

import hashlib
import json
from dataclasses import asdict, field
from pathlib import Path, PurePosixPath
from typing import Any, Final, NamedTuple

from callboard.backup.errors import BackupDamaged, BackupError, BackupRefused
from callboard.commitlog.disk import open_plain, sync_path
from callboard.support.dataclass import dataclass
from callboard.support.files.private_file import open_private
from callboard.support.json_form import json_of
from callboard.support.nesting import parse_json

#: The format that this release writes, and the newest one that it reads.
FORMAT: Final = 1
#: The file of the manifest.
MANIFEST: Final = "manifest.json"
#: The folder of the copied files.
DATA: Final = "data"
#: Kinds of parts.
LOG: Final = "log"
ENTITIES: Final = "entities"
STORE: Final = "store"
#: Bytes of a manifest at most: the files of some 500,000 segments.
_LIMIT: Final = 64 << 20


class CopiedFile(NamedTuple):
    """A copied file: its name in its part, its size in bytes, and the SHA-256 of its bytes."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Part:
    """A log, or a database of entities or of a store.

    Attributes:
        kind: `log`, `entities` or `store`.
        name: its path relative to the base of the backup.
        facts: numbers for people, such as the number of records.
        files: its files; a database is one file, whose name is "".
    """

    kind: str
    name: str
    facts: dict[str, Any]
    files: list[CopiedFile]

    @property
    def size(self) -> int:
        """Number of bytes of all files."""
        return sum(file.size for file in self.files)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The contents of a backup.

    Attributes:
        node: name of the node; empty for a folder.
        machine: name of the machine.
        time: time of the cut, ISO 8601 in UTC.
        base: the folder that held all parts.
        release: release of callboard that made the backup.
        seconds: duration of the backup.
        held_ms: time for which nothing could be written, in milliseconds.
        parts: the logs and databases.
        left_out: databases of the node that the backup does not contain, with the reasons.
        format: version of this format.
    """

    node: str
    machine: str
    time: str
    base: str
    release: str
    seconds: float
    held_ms: float
    parts: list[Part]
    left_out: list[tuple[str, str]] = field(default_factory=list)
    format: int = FORMAT

    @property
    def size(self) -> int:
        """Number of bytes of all parts."""
        return sum(part.size for part in self.parts)

    def write(self, folder: Path) -> None:
        """Write the manifest durably."""
        row = asdict(self)
        text = json_of({"sum": _sum_of(row), "backup": row})
        with open(folder / MANIFEST, "w", encoding="utf-8", opener=open_private) as file:
            file.write(text)
        sync_path(folder / MANIFEST)


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest of a backup.

    Raises:
        BackupRefused: the folder is not a backup, is unfinished, or is of a newer release.
        BackupDamaged: the manifest is damaged.
        BackupError: it cannot be read.
    """
    path = folder / MANIFEST
    try:
        with open(path, "rb", opener=open_plain) as file:
            data = file.read(_LIMIT)
    except FileNotFoundError:
        message = (
            f"{folder} is not a whole backup: it has no {MANIFEST}, which is written last;"
            " use another backup"
        )
        raise BackupRefused(message) from None
    except OSError as error:
        message = f"{path} cannot be read: {error.strerror or error}; check its folder"
        raise BackupError(message) from error
    damage = BackupDamaged(f"{path} is damaged; use another backup")
    try:
        document = parse_json(data)
        row, checksum = document["backup"], document["sum"]
        version = row["format"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise damage from None
    if checksum != _sum_of(row) or type(version) is not int:
        raise damage
    if version > FORMAT:
        message = (
            f"{folder} has format {version}, and this release reads formats up to {FORMAT};"
            f" restore it with callboard {row.get('release', '')} or later"
        )
        raise BackupRefused(message)
    try:
        return _manifest_of(row)
    except (KeyError, TypeError, ValueError):
        raise damage from None


def _manifest_of(row: dict[str, Any]) -> Manifest:
    """Return a manifest from its JSON; keys that this release does not know are ignored."""
    parts = [
        Part(
            str(part["kind"]),
            _checked_path(part["name"]),
            dict(part["facts"]),
            [
                CopiedFile(name and _checked_path(name), int(size), str(digest))
                for name, size, digest in part["files"]
            ],
        )
        for part in row["parts"]
    ]
    texts = {key: str(row[key]) for key in ("node", "machine", "time", "base", "release")}
    return Manifest(
        **texts,
        seconds=float(row["seconds"]),
        held_ms=float(row["held_ms"]),
        parts=parts,
        left_out=[(str(name), str(reason)) for name, reason in row["left_out"]],
        format=row["format"],
    )


def _checked_path(name: str) -> str:
    """Return a relative path; one that leaves its folder raises `ValueError`."""
    path = PurePosixPath(name)
    if not name or path.is_absolute() or ".." in path.parts:
        raise ValueError(name)
    return name


def _sum_of(row: dict[str, Any]) -> str:
    """Return the checksum of the contents of a manifest."""
    text = json.dumps(row, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
