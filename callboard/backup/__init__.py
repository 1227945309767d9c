"""Backups: everything that a process stores, as one cut, while the process runs.

`back_up` copies the entities, stores and logs that this process writes, `verify` checks a
backup, and `restore` makes a new folder from one. The commands `callboard backup` and
`callboard restore` do the same for a running node and for a folder without one.
"""

from callboard.backup.errors import BackupDamaged, BackupError, BackupRefused
from callboard.backup.manifest import Manifest
from callboard.backup.restoring import restore
from callboard.backup.taking import back_up, back_up_folder
from callboard.backup.verifying import verify

__all__ = [
    "BackupDamaged",
    "BackupError",
    "BackupRefused",
    "Manifest",
    "back_up",
    "back_up_folder",
    "restore",
    "verify",
]
