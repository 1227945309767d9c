"""What commands print: tables of plain text for people and for `awk`, JSON for programs.

Names, topics, texts of errors and payloads come from other nodes, clients and files. What they
hold that a terminal would obey is printed as escapes (`callboard.text.printable`), in JSON as
the escapes of JSON, so that a program reads what was there.
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
        text: of any source; line breaks and tabs stay.
        err: on the standard error.
    """
    typer.echo(printable(str(text), kept="\n\t"), err=err)


def to_json(value: Any) -> str:
    """Return a value as a line of JSON without characters that a terminal would obey."""
    from callboard.commitlog import json_text  # a log's codec, which no help needs

    text = json_text.to_json(value)
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else json.dumps(each)[1:-1] for each in text)


def from_text(text: str) -> Any:
    """Return the value of a JSON text, or the text itself if it is not JSON."""
    try:
        return parse_json(text)
    except ValueError:
        return text


def columns(
    head: Sequence[str], rows: Sequence[Sequence[str]], *, right: Collection[int] = ()
) -> str:
    """Return rows under a head, each column as wide as it has to be.

    Args:
        head: the titles.
        rows: as many texts each.
        right: indexes of the columns that stand at their right edge, as numbers do.
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


def age_text(seconds: float) -> str:
    """Return a time span in the two largest units that it has."""
    for unit, size, next_unit, next_size in (
        ("d", 86_400, "h", 3_600),
        ("h", 3_600, "m", 60),
        ("m", 60, "s", 1),
    ):
        if seconds >= size:
            return f"{int(seconds // size)}{unit}{int(seconds % size // next_size)}{next_unit}"
    return f"{seconds:.1f}s"
