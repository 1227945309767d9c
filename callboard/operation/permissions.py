"""The file of `callboard node run --permissions`: named secrets, and the rights of peers.

The format is TOML. An entry of `[secrets]` is a text, or `{ file = "PATH" }` with a path
relative to the file's folder, or a list of these while a secret is rotated.
`[permissions.PATTERN]` holds the rights of peers whose names match; the first match counts.
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
    """The contents of a permissions file: secrets by name, rights by pattern."""

    secrets: dict[str, Secrets] | None = None
    permissions: dict[str, Rights] | None = None

    def __repr__(self) -> str:
        names = None if self.secrets is None else sorted(self.secrets)
        return f"PeerPermissions(secrets of {names}, {self.permissions!r})"


def _secrets(value: Any, info: ValidationInfo) -> Secrets:
    """Return the secrets of one name: texts, or files with one secret in a line.

    A list has several secrets; a dialer proves the first one.

    Raises:
        ValueError: the list is empty, or an item is empty or neither text nor file.
    """
    items = value if isinstance(value, list) else [value]
    secrets = [secret for item in items for secret in _secrets_of(item, info)]
    if not secrets:
        message = "write at least one secret"
        raise ValueError(message)
    return secrets[0] if len(secrets) == 1 else secrets


def _secrets_of(value: Any, info: ValidationInfo) -> list[str]:
    """Return a secret as a list, or all secrets of a file.

    Raises:
        ValueError: the value is empty or neither text nor file.
    """
    is_file = isinstance(value, dict) and list(value) == ["file"]
    if is_file and isinstance(value["file"], str):
        file = reading.find_file(Path(value["file"]), info)
        try:
            value = file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            message = f"{file}: {getattr(error, 'strerror', None) or 'it is not UTF-8 text'}"
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
#: `[permissions.PATTERN]`: the fields of `Rights`, or `member = true` for all rights.
RightsTable: Any = create_model("RightsTable", __base__=reading.StrictTable, **_RIGHTS)


class PermissionsFile(reading.Table):
    """The whole file."""

    secrets: dict[str, Annotated[Any, AfterValidator(_secrets)]] = Field(default={}, repr=False)
    permissions: dict[str, RightsTable]


def load_permissions(path: Path) -> PeerPermissions:
    """Read a permissions file.

    Raises:
        InvalidConfiguration: the file has mistakes; the error lists all of them.
    """
    values = reading.read_values(path, InvalidConfiguration)
    contents = reading.check_values(PermissionsFile, values, InvalidConfiguration, path)
    mistakes, permissions = [], {}
    for pattern, table in contents.permissions.items():
        rights = table.model_dump(exclude_unset=True)
        if rights.pop("member", False):
            permissions[pattern] = Rights.member()
            if rights:
                label = f"{path}: permissions.{pattern}.member = True"
                names = ", ".join(rights)
                mistakes.append(f"{label}: a member has all rights; remove {names} or member")
        else:
            permissions[pattern] = Rights(**rights)
    for name in contents.secrets:
        if not any(fnmatchcase(name, pattern) for pattern in permissions):
            matches = difflib.get_close_matches(name, permissions, 1)
            hint = f"; did you mean {matches[0]!r}?" if matches else ""
            reason = "no [permissions.PATTERN] matches it, so it would admit no peer"
            mistakes.append(f"{path}: secrets.{name}: {reason}{hint}")
    try:
        LinkAccess.of(None, contents.secrets, permissions)
    except ValueError as error:
        mistakes.append(f"{path}: secrets: {error}")
    if mistakes:
        raise InvalidConfiguration(mistakes)
    return PeerPermissions(contents.secrets, permissions)
