"""The file of `callboard node run --permissions`: named secrets, and what each peer may do.

TOML: `[secrets]` holds texts, or files as `{ file = "PATH" }`, whose paths begin at the file's
folder, or lists of these while one secret takes the place of another;
`[permissions.PATTERN]` the rights of the peers whose names match, the first one first.
"""

import difflib
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import AfterValidator, Field, ValidationInfo, create_model

from callboard.configuration import reading
from callboard.kernel.access import NAMED, TOPICS, Level, LinkAccess, Rights, Secrets
from callboard.operation.configuration import InvalidConfiguration


class PeerPermissions(NamedTuple):
    """What a file says: secrets by name, rights by pattern."""

    secrets: dict[str, Secrets] | None = None
    permissions: dict[str, Rights] | None = None

    def __repr__(self) -> str:
        names = None if self.secrets is None else sorted(self.secrets)
        return f"PeerPermissions(secrets of {names}, {self.permissions!r})"


def _secrets(value: Any, info: ValidationInfo) -> Secrets:
    """Return the secrets of a name: texts, or files that hold one in a line.

    A list has several; the first of all is proved first.

    Raises:
        ValueError: there is none, or one is neither text nor file, or empty.
    """
    given = value if isinstance(value, list) else [value]
    found = [secret for each in given for secret in _secrets_of(each, info)]
    if not found:
        message = "write at least one secret"
        raise ValueError(message)
    return found[0] if len(found) == 1 else found


def _secrets_of(value: Any, info: ValidationInfo) -> list[str]:
    """Return a secret, or those of a file.

    Raises:
        ValueError: it is neither, or empty.
    """
    is_file = isinstance(value, dict) and list(value) == ["file"]
    if is_file and isinstance(value["file"], str):
        place = reading.find_file(Path(value["file"]), info)
        try:
            value = place.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            message = f"{place}: {getattr(error, 'strerror', None) or 'it is no text'}"
            raise ValueError(message) from None
    if not isinstance(value, str) or not value:
        message = 'write a text that is not empty, or { file = "PATH" }'
        raise ValueError(message)
    lines = value.splitlines() if is_file else [value]
    return [line.strip() for line in lines if line.strip()]


_RIGHTS: dict[str, Any] = {
    **{right: (list[str], Field(default=[])) for right in (*NAMED, *TOPICS)},
    "stores": (dict[str, Level], Field(default={})),
    **dict.fromkeys(("inspect", "drain", "member"), (bool, False)),
}
#: `[permissions.PATTERN]`: the fields of `Rights`, or `member = true` for everything.
RightsTable: Any = create_model("RightsTable", __base__=reading.StrictTable, **_RIGHTS)


class PermissionsFile(reading.Table):
    """The whole file."""

    secrets: dict[str, Annotated[Any, AfterValidator(_secrets)]] = Field(default={}, repr=False)
    permissions: dict[str, RightsTable]


def load_permissions(path: Path) -> PeerPermissions:
    """Read a file of permissions.

    Raises:
        InvalidConfiguration: with all mistakes.
    """
    values = reading.read_values(path, InvalidConfiguration)
    found = reading.check_values(PermissionsFile, values, InvalidConfiguration, path)
    mistakes, permissions = [], {}
    for pattern, table in found.permissions.items():
        given = table.model_dump(exclude_unset=True)
        if given.pop("member", False):
            permissions[pattern] = Rights.member()
            if given:
                where = f"{path}: permissions.{pattern}.member = True"
                more = ", ".join(given)
                mistakes.append(f"{where}: that is everything; leave {more} out, or that")
        else:
            permissions[pattern] = Rights(**given)
    for name in found.secrets:
        if not any(fnmatchcase(name, pattern) for pattern in permissions):
            meant = difflib.get_close_matches(name, permissions, 1)
            hint = f"; did you mean {meant[0]!r}?" if meant else ""
            why = "no [permissions.PATTERN] matches it, so nobody could come with it"
            mistakes.append(f"{path}: secrets.{name}: {why}{hint}")
    try:
        LinkAccess.of(None, found.secrets, permissions)
    except ValueError as error:
        mistakes.append(f"{path}: secrets: {error}")
    if mistakes:
        raise InvalidConfiguration(mistakes)
    return PeerPermissions(found.secrets, permissions)
