"""`callboard node top` in a terminal: one table, drawn again at each look."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from callboard.cli.inspecting import HEAD, RIGHT, Rated, summary, table
from proxies.inspection import Inspection


@contextmanager
def live_view(
    console: Console,
) -> Iterator[Callable[[Inspection, dict[str, float], list[Rated]], None]]:
    """Yield what draws a look; Ctrl-C ends it."""
    with Live(console=console, screen=True, auto_refresh=False) as live:

        def show(told: Inspection, shares: dict[str, float], rated: list[Rated]) -> None:
            drawn = Table(box=None, expand=False)
            for index, title in enumerate(HEAD):
                drawn.add_column(title, justify="right" if index in RIGHT else "left")
            room = max(1, console.height - 6)
            for row in table(rated)[:room]:
                drawn.add_row(*map(Text, row))
            live.update(
                Group(Text(summary(told, shares)), drawn, Text("Ctrl-C ends")), refresh=True
            )

        yield show
