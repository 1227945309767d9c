"""The options of the SQLite backend, with Broker's names.

| option | values | default |
|---|---|---|
| `path` | a file; required | |
| `synchronous` | `OFF`, `NORMAL`, `FULL`, `EXTRA` | `FULL` |
| `journal_mode` | `WAL`, `DELETE` | `WAL` |
| `failure_mode` | `FAIL`: a damaged file is an error; `DELETE`: start without it | `FAIL` |
| `integrity_check` | look through the whole file when it is opened | False |

Values may have the form in which Broker wants them: an enum value or text such as
`Broker::SQLITE_SYNCHRONOUS_FULL`.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from callboard.endpoint.errors import InvalidData
from callboard.endpoint.scalar import Enum

__all__ = ["SqliteOptions"]

_CHOICES: Final = {
    "synchronous": ("OFF", "NORMAL", "FULL", "EXTRA"),
    "journal_mode": ("WAL", "DELETE"),
    "failure_mode": ("FAIL", "DELETE"),
}


@dataclass(frozen=True, slots=True)
class SqliteOptions:
    """Checked options."""

    path: str
    synchronous: str = "FULL"
    journal_mode: str = "WAL"
    failure_mode: str = "FAIL"
    integrity_check: bool = False

    @classmethod
    def read(cls, options: Mapping[str, Any]) -> Self:
        """Check what a user gave.

        Raises:
            InvalidData: an option is missing, unknown, or has no such value.
        """
        known = dict(options)
        path = known.pop("path", None)
        if not isinstance(path, str | os.PathLike) or not os.fspath(path):
            msg = 'a SQLite backend needs a file: options={"path": "things.db"}'
            raise InvalidData(msg)
        check = known.pop("integrity_check", False)
        if not isinstance(check, bool):
            msg = f"integrity_check is True or False, not {check!r:.60}"
            raise InvalidData(msg)
        chosen = {name: _choice(name, value) for name, value in known.items()}
        return cls(os.fspath(path), integrity_check=check, **chosen)


def _choice(name: str, value: Any) -> str:
    if name not in _CHOICES:
        names = ", ".join(("path", *_CHOICES, "integrity_check"))
        msg = f"the SQLite backend has no option {name!r:.60}; it has {names}"
        raise InvalidData(msg)
    text = value.name if isinstance(value, Enum) else str(value)
    text = text.removeprefix("Broker::").removeprefix(f"SQLITE_{name.upper()}_")
    if text not in _CHOICES[name]:
        msg = f"{name} is one of {', '.join(_CHOICES[name])}, not {text!r:.60}"
        raise InvalidData(msg)
    return text
