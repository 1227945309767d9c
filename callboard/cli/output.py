"""What commands print: tables of plain text for people and for `awk`, JSON for programs."""

import json
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from callboard.cli.options import JsonOptions
from callboard.cli.terminal import to_json
from callboard.text import printable

__all__ = ["age_text", "columns", "from_text", "screen", "to_json"]


@contextmanager
def screen(options: JsonOptions) -> Iterator[Callable[[Any, str], None]]:
    """Yield what shows a row or its text: drawn in place in a terminal, else printed."""
    if options.as_json or not sys.stdout.isatty():
        yield options.say
        return
    from rich.live import Live
    from rich.text import Text

    with Live(screen=True, auto_refresh=False) as live:

        def draw(_: Any, text: str) -> None:
            text = printable(text, kept="\n")
            lines = text.split("\n")[: max(1, live.console.height - 2)]
            shown = Text("\n".join([*lines, "Ctrl-C ends"]), no_wrap=True)
            live.update(shown, refresh=True)

        yield draw


def from_text(text: str) -> Any:
    """Return the value of a JSON text, or the text itself if it is not JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
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
