"""Durable checkpoints of queries, for the option `sync=checkpoint`.

Spark does not sync a checkpoint in a folder. Suppose a machine loses power after the results of
a batch were published, but before the batch's plan reached the disk: Spark would plan the batch
again with another end, and the records between both ends would never be read. So the plan and
the states of the batch are synced before its results are published. Only this module knows the
layout of Spark's checkpoints, so without the option they may be in any file system.
"""

import os
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote, urlsplit

from callboard.commitlog.disk import sync_path


def local_path(location: str) -> Path | None:
    """Return the directory of a checkpoint; None if it is in another file system."""
    parts = urlsplit(location)
    if parts.scheme in {"", "file"}:
        return Path(unquote(parts.path) if parts.scheme else location)
    return None


def sync_checkpoint(location: str, batch: int) -> None:
    """Sync the plan of a batch and the states that it has written."""
    folder = local_path(location)
    if folder is None:
        return
    plan = folder / "offsets" / str(batch)
    try:
        since = plan.stat().st_mtime_ns
    except FileNotFoundError:
        return
    folders = {folder}
    for path in (folder / "metadata", plan, *_states(folder / "state", since)):
        try:
            sync_path(path)
        except FileNotFoundError:  # Spark has removed an old state
            continue
        folders |= {path.parent, path.parent.parent}
    for parent in folders:
        sync_path(parent)


def _states(folder: Path, since: int) -> list[Path]:
    """Return the state files that were changed at or after a time."""
    paths: list[Path] = []
    for parent, _, names in os.walk(folder):
        for name in names:
            path = Path(parent, name)
            with suppress(FileNotFoundError):
                if path.stat().st_mtime_ns >= since:
                    paths.append(path)
    return paths
