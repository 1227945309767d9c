"""Output of commands: tables of plain text for people and `awk`, JSON for programs.

Names, topics, error texts and payloads come from other nodes, clients and files. Control
characters in them are printed as escapes (`callboard.text.printable`), and in JSON as JSON's
escapes, so that a program can read the original.
"""

import json
from collections.abc import Collection, Sequence
from typing import Any

import typer

from callboard.support.nesting import parse_json
from callboard.support.text import printable


def say(text: object = "", *, err: bool = False) -> None:
    """Print lines.

    Args:
        text: text from any source; line breaks and tabs are kept.
        err: print to standard error.
    """
    typer.echo(printable(str(text), allowed="\n\t"), err=err)


def to_json(value: Any) -> str:
    """Return a value as a line of JSON without control characters."""
    from callboard.commitlog import json_text  # imported late: `--help` does not need it

    text = json_text.to_json(value)
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else json.dumps(char)[1:-1] for char in text)


def from_text(text: str) -> Any:
    """Return the value of a JSON text, or the text itself if it is not JSON."""
    try:
        return parse_json(text)
    except ValueError:
        return text


def columns(
    head: Sequence[str], rows: Sequence[Sequence[str]], *, right: Collection[int] = ()
) -> str:
    """Return a table with columns of minimal width.

    Args:
        head: titles.
        rows: a text for each column.
        right: indices of columns to align right, such as numbers.
    """
    lines = [head, *([printable(text) for text in row] for row in rows)]
    widths = [max(len(line[index]) for line in lines) for index in range(len(head))]
    return "\n".join(
        "  ".join(
            text.rjust(width) if index in right else text.ljust(width)
            for index, (text, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def is_number(value: object) -> bool:
    """Return whether a value is shown as a number, aligned to the right."""
    return type(value) in (int, float)


def cell_text(value: object) -> str:
    """Return a value as text for a cell of a table."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.1f}"
    return f"{value:,}" if type(value) is int else str(value)


def milliseconds(seconds: float) -> str:
    """Return a short time as text; "-" if it was not measured."""
    return f"{1000 * seconds:,.1f} ms" if seconds else "-"


def bytes_text(count: float) -> str:
    """Return a number of bytes as text in megabytes."""
    return f"{count / 1e6:,.1f} MB"


def age_text(seconds: float) -> str:
    """Return a time span in its two largest units."""
    for unit, size, next_unit, next_size in (
        ("d", 86_400, "h", 3_600),
        ("h", 3_600, "m", 60),
        ("m", 60, "s", 1),
    ):
        if seconds >= size:
            return f"{int(seconds // size)}{unit}{int(seconds % size // next_size)}{next_unit}"
    return f"{seconds:.1f}s"
