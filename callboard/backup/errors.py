"""Errors of backups.

::

    CallboardError
    └── BackupError           the backup could not be made, read or restored (OSError)
        ├── BackupRefused     a wrong source or target; nothing was written  (ValueError)
        └── BackupDamaged     a file of the backup is missing or damaged; the text names it
"""

from callboard.kernel.errors import CallboardError


class BackupError(CallboardError, OSError):
    """A backup could not be made, read or restored."""


class BackupRefused(BackupError, ValueError):
    """The source or the target of a backup or restore cannot be used; nothing was written."""


class BackupDamaged(BackupError):
    """A file of a backup is missing or not as the manifest says; the text names it."""
