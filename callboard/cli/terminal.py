"""The way to the terminal: nothing that a terminal would obey gets there.

Names, topics, texts of errors and payloads come from other nodes, clients and files. What they
hold of control characters is printed as escapes (`callboard.text.printable`); in JSON as the
escapes of JSON, so that a program reads what was there.
"""

import json
from typing import Any

import typer

from callboard.text import printable


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
