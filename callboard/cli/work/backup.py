"""Implementation of `callboard backup` and `callboard restore`."""

from functools import partial
from pathlib import Path
from typing import Any, Final

from callboard.backup import BackupError, BackupRefused, back_up_folder, restore, verify
from callboard.backup.service import request_backup, summary_of
from callboard.cli.cli_error import explained
from callboard.cli.options import AccessOptions, JsonOptions
from callboard.cli.output import columns, say
from callboard.kernel.errors import RemoteError
from callboard.node import ask_for_backup

#: Name of the node of this command.
NAME: Final = "callboard backup"

_HEAD = ("KIND", "NAME", "BYTES", "FILES", "HOLDS")
_STEP = "see callboard backup --help"


def back_up(source: str, target: Path, options: AccessOptions, timeout: float) -> None:
    """Back up a node or a folder, and print the contents."""
    with explained((BackupError, RemoteError), _STEP):
        if Path(source).is_dir():
            summary = summary_of(back_up_folder(source, target))
        elif ":" not in source:
            text = f"{source} is neither a folder nor an address; write basp://HOST:PORT"
            raise BackupRefused(text)
        else:
            with options.open_node(NAME) as node:
                peer = node.connect(source, timeout)
                summary = request_backup(target, partial(ask_for_backup, node, peer))
    _show(summary, f"backed up to {target}", options)
    if not options.as_json:
        for row in summary["left_out"]:
            say(f"left out: {row['name']}: {row['reason']}", err=True)


def check(target: Path, options: JsonOptions) -> None:
    """Check a backup, and print the contents."""
    with explained(BackupError, _STEP):
        manifest = verify(target)
    _show(summary_of(manifest), f"{target} is whole and intact", options)


def restore_into(source: Path, folder: Path, options: JsonOptions) -> None:
    """Restore a backup, and print the contents of the folder."""
    with explained(BackupError, "see callboard restore --help"):
        manifest = restore(source, folder)
    _show(summary_of(manifest), f"restored to {folder}", options)


def _show(summary: dict[str, Any], title: str, options: JsonOptions) -> None:
    """Print the parts of a backup, and a line about all of it."""
    rows = [
        [row["kind"], row["name"], f"{row['bytes']:,}", f"{row['files']:,}", _holds(row)]
        for row in summary["parts"]
    ]
    origin = summary["node"] or summary["machine"]
    last = f"{title}: {origin} at {summary['time']}, {summary['bytes']:,} bytes"
    options.say(summary, f"{columns(_HEAD, rows, right=(2, 3))}\n{last}")


def _holds(row: dict[str, Any]) -> str:
    """Describe the contents of a part."""
    if row["kind"] == "log":
        return f"records {row['start']:,} to {row['end']:,}"
    if row["kind"] == "store":
        return f"{row['entries']:,} entries"
    events = row.get("events", {})
    return ", ".join(f"{name}: {count:,} events" for name, count in events.items())
