"""Checkpoints of queries: durable ones, for `sync=checkpoint`, and mix-ups of them.

Spark does not sync a checkpoint in a folder. Suppose a machine loses power after the results of
a batch were published, but before the batch's plan reached the disk: Spark would plan the batch
again with another end, and the records between both ends would never be read. So the plan and
the states of the batch are synced before its results are published. Only this module knows the
layout of Spark's checkpoints, so without the option they may be in any file system.
"""

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from callboard.commitlog.disk import read_plain, replace_plain, sync_path
from callboard.pipeline.errors import InvalidSetting
from callboard.support.files.private_file import make_folder
from callboard.support.nesting import parse_json

#: File in a checkpoint with the sink of its query, and file in a sink with the checkpoint of
#: each `queryId`.
_SINK: Final = "callboard-sink.json"
_IDS: Final = "query-ids.json"


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


def check_checkpoint(location: str, sink: str, query: str, published: dict[str, int]) -> None:
    """Refuse a checkpoint of another query, and record the sink of this one.

    Args:
        location: The checkpoint; one that is not a folder is not checked.
        sink: The log of results.
        query: The option `queryId`, or "".
        published: The last batch of each query in the sink.

    Raises:
        InvalidSetting: the checkpoint is that of a query with another sink, or the id is that
            of a query with another checkpoint.
    """
    folder = local_path(location) if location else None
    if folder is None:
        return
    checkpoint, place = (
        str(folder.absolute()),
        sink if "://" in sink else str(Path(sink).absolute()),
    )
    is_fresh = not any((folder / "offsets").glob("[0-9]*"))
    recorded_sink = _read(folder / _SINK).get("sink", place)
    if recorded_sink != place and not is_fresh:
        msg = (
            f"the checkpoint {location} is that of a query that writes to {recorded_sink}, not"
            f" to {sink}; set another checkpointLocation, or remove {folder / _SINK} if the log"
            " of results was moved"
        )
        raise InvalidSetting(msg)
    if query:
        _check_id(query, checkpoint, place, is_fresh=is_fresh, was_used=query in published)
    if folder.is_dir():  # Spark has created it
        _write(folder / _SINK, {"sink": place})


def _check_id(
    query: str, checkpoint: str, sink: str, *, is_fresh: bool, was_used: bool
) -> None:
    """Refuse the id of a query that has another checkpoint: its batches would be left out."""
    ids: dict[str, str] = {}
    if "://" not in sink:
        ids = _read(Path(sink) / _IDS)
    user_checkpoint = ids.get(query, checkpoint)
    if user_checkpoint != checkpoint or (is_fresh and was_used):
        user = (
            f"the query with the checkpoint {user_checkpoint}"
            if user_checkpoint != checkpoint
            else "a query"
        )
        msg = (
            f"queryId={query!r} was used in {sink} by {user}, and batches with the same numbers"
            " would be left out; use its checkpoint, or another id"
        )
        raise InvalidSetting(msg)
    if "://" not in sink:
        make_folder(Path(sink))
        _write(Path(sink) / _IDS, ids | {query: checkpoint})


def _read(path: Path) -> dict[str, str]:
    """Return the content of one of our files; empty if it is missing or damaged."""
    with suppress(OSError, ValueError):
        fields = parse_json(read_plain(path))
        return fields if isinstance(fields, dict) else {}
    return {}


def _write(path: Path, fields: dict[str, str]) -> None:
    """Write one of our files, if it changed."""
    if _read(path) != fields:
        replace_plain(path, json.dumps(fields).encode())
