"""Backups of a running node: the request of another process on its machine, and the answer.

The node writes the files, because it alone can stop its writers for a moment. The asker creates
the unfinished folder, and a file with a random token in it. The node reads the token there
before it writes, so only a process that can write to the folder can have a node write there.
"""

import hmac
import os
import secrets
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from callboard.backup.copying import PARTIAL, check_target, finishing, partial_of
from callboard.backup.errors import BackupError, BackupRefused
from callboard.backup.manifest import Manifest
from callboard.backup.taking import fill
from callboard.commitlog.disk import read_plain
from callboard.kernel.context import NodeContext
from callboard.kernel.reply import Promise
from callboard.support.files.private_file import make_folder, open_private
from callboard.support.text import error_text

#: The file with the token.
_REQUEST: Final = "request"


def request_backup(
    target: str | Path, ask: Callable[[str, str], dict[str, Any]]
) -> dict[str, Any]:
    """Have a node of this machine make a backup; return its summary.

    Args:
        target: the folder of the backup, which must not exist or be empty.
        ask: passes the folder and the token to the node, and returns the summary.

    Raises:
        BackupRefused: the target has contents.
        BackupError: the folder cannot be made.
    """
    place = Path(target).absolute()
    check_target(place)
    partial = partial_of(place)
    token = secrets.token_hex(32)
    try:
        make_folder(partial)
        with open(partial / _REQUEST, "w", encoding="ascii", opener=open_private) as file:
            file.write(token)
    except OSError as error:
        message = f"{partial} cannot be made: {error.strerror or error}; name another folder"
        raise BackupError(message) from error
    try:
        return ask(str(partial), token)
    except BaseException:
        if (partial / _REQUEST).exists():  # the node has not begun
            shutil.rmtree(partial, ignore_errors=True)
        raise


def answer(runtime: NodeContext, folder: object, token: object, promise: Promise) -> None:
    """Make the requested backup on a thread, and answer with its summary."""

    def run() -> None:
        try:
            partial = _checked_folder(runtime.name, folder, token)
            target = partial.with_name(partial.name.removesuffix(PARTIAL))
            with finishing(partial, target):
                manifest = fill(partial, runtime.name)
            summary = summary_of(manifest)
        except Exception as error:  # noqa: BLE001 - the asker gets it
            text = error_text(error)
            failure = error if isinstance(error, BackupError) else BackupError(text)
            runtime.post(promise.set_exception, failure)
        else:
            runtime.post(promise.set_result, summary)

    threading.Thread(target=run, name="callboard-backup", daemon=True).start()


def _checked_folder(node: str, folder: object, token: object) -> Path:
    """Return the folder of a request whose asker can write to it; remove its token.

    Raises:
        BackupRefused: it is not such a folder.
    """
    step = "give a folder of its machine that its user may write to, and run the command there"
    if type(folder) is not str or type(token) is not str or not folder.endswith(PARTIAL):
        message = f"the request for a backup of {node} is malformed; use callboard backup"
        raise BackupRefused(message)
    path = Path(folder)
    try:
        if not path.is_absolute() or not token:
            raise ValueError
        content = read_plain(path / _REQUEST)
        if not hmac.compare_digest(content, token.encode()):
            raise ValueError
        (path / _REQUEST).unlink()
        if not os.access(path, os.W_OK | os.X_OK):
            raise ValueError
    except (OSError, ValueError):
        message = f"the node {node} cannot write to {folder!r:.300}; {step}"
        raise BackupRefused(message) from None
    return path


def summary_of(manifest: Manifest) -> dict[str, Any]:
    """Return the contents of a backup as plain values, without its files."""
    return {
        "node": manifest.node,
        "machine": manifest.machine,
        "time": manifest.time,
        "release": manifest.release,
        "bytes": manifest.size,
        "seconds": manifest.seconds,
        "held_ms": manifest.held_ms,
        "parts": [
            {
                "kind": part.kind,
                "name": part.name,
                "bytes": part.size,
                "files": len(part.files),
                **part.facts,
            }
            for part in manifest.parts
        ],
        "left_out": [{"name": name, "reason": reason} for name, reason in manifest.left_out],
    }
