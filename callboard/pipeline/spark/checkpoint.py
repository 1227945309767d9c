"""That a query's checkpoint does not go back; for those who ask for it with `sync=checkpoint`.

Spark does not sync a checkpoint in a folder. If a machine lost its power after results were
published, but before the plan of their batch was on the disk, Spark would plan that batch anew
with another end, and the records between would never be read. So the plan, and the states that
the batch has written, are made durable before its results are. This knows how Spark arranges
its checkpoints; nothing else opens their files, so they may be in any file system of Spark's.
"""

import os
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote, urlsplit

from callboard.commitlog.disk import sync_path


def local_path(location: str) -> Path | None:
    """Return a checkpoint's directory, or None if it is in another file system."""
    parts = urlsplit(location)
    if parts.scheme in {"", "file"}:
        return Path(unquote(parts.path) if parts.scheme else location)
    return None


def sync_checkpoint(location: str, batch: int) -> None:
    """Make durable the plan of a batch, and the states that it has written."""
    folder = local_path(location)
    if folder is None:
        return
    plan = folder / "offsets" / str(batch)
    try:
        since = plan.stat().st_mtime_ns
    except FileNotFoundError:
        return
    touched = {folder}
    for path in (folder / "metadata", plan, *_states(folder / "state", since)):
        try:
            sync_path(path)
        except FileNotFoundError:  # Spark removes old states
            continue
        touched |= {path.parent, path.parent.parent}
    for parent in touched:
        sync_path(parent)


def _states(folder: Path, since: int) -> list[Path]:
    """Return the files of states that are not older than a moment."""
    found: list[Path] = []
    for parent, _, names in os.walk(folder):
        for name in names:
            path = Path(parent, name)
            with suppress(FileNotFoundError):
                if path.stat().st_mtime_ns >= since:
                    found.append(path)
    return found
