"""Changes of users in a configuration file; its other lines and comments stay as they are."""

import re
import tomllib
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

#: The line of a table, or of one table of an array.
_HEADER: Final = re.compile(r"\s*\[")


class _Block(NamedTuple):
    """The lines of one table: from its header up to the next one."""

    start: int
    end: int


def _blocks(lines: list[str], table: str) -> Iterator[tuple[_Block, dict[str, Any]]]:
    """Yield the blocks of an array of tables, with their contents."""
    headers = [number for number, line in enumerate(lines) if _HEADER.match(line)]
    for start, following in zip(headers, [*headers[1:], len(lines)], strict=True):
        text = "\n".join(lines[start:following])
        try:
            values = tomllib.loads(text)
        except tomllib.TOMLDecodeError:  # a line of an array that begins with a bracket
            continue
        if isinstance(entries := values.get(table), list) and len(entries) == 1:
            end = following
            while not lines[end - 1].strip() or lines[end - 1].lstrip().startswith("#"):
                end -= 1  # comments above the next table belong to it
            yield _Block(start, end), entries[0]


def without_user(text: str, name: str) -> tuple[str, bool]:
    """Return a file without a user and the user's topic rules, and whether there was one."""
    lines, found_user = text.split("\n"), False
    doomed: list[_Block] = []
    for table, key in (("users", "name"), ("acl", "user")):
        for block, values in _blocks(lines, table):
            if values.get(key) == name:
                doomed.append(block)
                found_user = found_user or table == "users"
    for start, end in sorted(doomed, reverse=True):
        if end < len(lines) and not lines[end].strip():
            del lines[end]
        del lines[start:end]
    return "\n".join(lines), found_user


def with_user(text: str, name: str, entry: str) -> str:
    """Return a file with the entry of a user, in the place of an existing one."""
    lines = text.split("\n")
    for (start, end), values in _blocks(lines, "users"):
        if values.get("name") == name:
            lines[start:end] = entry.rstrip("\n").split("\n")
            return "\n".join(lines)
    return f"{text.rstrip(chr(10))}\n\n{entry.rstrip(chr(10))}\n"
