"""The demo in a terminal: one picture, redrawn eight times a second with rich."""

from collections.abc import Iterable
from typing import Final

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from callboard.demo.aggregator import sensor_of
from callboard.demo.analysis import BARS
from callboard.demo.line import LINKS, NAMES
from callboard.demo.scene import NodeState, NodeView, Scene, SceneEvent
from callboard.demo.screen import event_line
from callboard.demo.sensor import SUBJECTS
from callboard.demo.story import Tone
from callboard.support.text import printable

#: Seconds between two pictures.
DRAW_INTERVAL: Final = 0.125

#: Lines of the picture, without the log.
FIXED_LINES: Final = 21

#: Columns of a link; the nodes share the rest.
LINK_WIDTH: Final = 9

_STYLES: Final[dict[NodeState, tuple[str, str]]] = {
    "starting": ("○", "yellow"),
    "up": ("●", "green"),
    "unreachable": ("◌", "yellow"),
    "frozen": ("❄", "cyan"),
    "dead": ("✗", "bold red"),
}

_TONES: Final[dict[Tone, str]] = {"plain": "", "bad": "red", "good": "green"}


class _Terminal(Console):
    """A console that escapes control characters in all texts."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Return the segments of a renderable; rich's own control codes are kept."""
        for segment in super().render(renderable, options):
            if not segment.control and not segment.text.isprintable():
                segment = segment._replace(text=printable(segment.text, allowed="\n"))
            yield segment


class LiveScreen:
    """Draws the scene on the terminal's alternate screen; the log is printed when it closes."""

    #: Seconds between two pictures.
    interval = DRAW_INTERVAL

    def __init__(self, length: float | None) -> None:
        """Create the screen; `length` is the story's duration in seconds, None if endless."""
        self._console = _Terminal()
        self._live = Live(console=self._console, screen=True, auto_refresh=False)
        self._length = length
        self._start_ms = 0.0
        self._events: list[tuple[SceneEvent, float]] = []
        #: Link of the page in the browser; "" without one.
        self.link = ""

    def open(self, start_ms: float) -> None:
        """Open the screen; `start_ms` is the time since the start, in milliseconds."""
        self._start_ms = start_ms
        self._live.start()

    def event(self, event: SceneEvent, seconds: float) -> None:
        """Add an event to the log."""
        self._events.append((event, seconds))

    def draw(self, scene: Scene, seconds: float, prompt: str) -> None:
        """Draw the picture."""
        lines = max(self._console.height - FIXED_LINES - bool(self.link), 3)
        link = Text(f"open {self.link}", style="bold", no_wrap=True)
        picture = Group(
            *((link,) if self.link else ()),
            self._header(seconds),
            line_of_nodes(scene),
            figures(scene),
            journey(scene),
            store(scene),
            *analysis(scene),
            Panel(
                log(self._events[-lines:]),
                title="log (ms since the last blow)",
                title_align="left",
            ),
            Text(prompt, style="reverse", no_wrap=True),
        )
        self._live.update(picture, refresh=True)

    def close(self) -> None:
        """Restore the ordinary screen and print the log there."""
        self._live.stop()
        if self._events:
            self._console.print(log(self._events), soft_wrap=True)

    def _header(self, seconds: float) -> Text:
        """Return the first line."""
        length = "" if self._length is None else f" of {self._length:g}"
        first = f"first picture {self._start_ms:,.0f} ms after the start"
        clock = f"  {max(seconds, 0.0):.1f}{length} s · {first}"
        return Text.assemble(("callboard demo", "bold"), clock, no_wrap=True)


def line_of_nodes(scene: Scene) -> RenderableType:
    """Return the nodes and links as a line, with the actors of each node below it."""
    table = Table.grid(expand=True)
    columns: list[list[RenderableType]] = []
    for number, name in enumerate(NAMES):
        if number:
            table.add_column(width=LINK_WIDTH, justify="center", no_wrap=True)
            columns.append([_link(scene, *LINKS[number - 1]), "", "", ""])
        table.add_column(ratio=1, justify="center", no_wrap=True)
        columns.append(_node(scene, scene.nodes[name]))
    for row in zip(*columns, strict=True):
        table.add_row(*row)
    return Panel(table)


def _link(scene: Scene, left: str, right: str) -> Text:
    """Return a link as text, with its frames a second."""
    if scene.link_is_up(left, right):
        return Text(f"━ {scene.link_rate(left, right):.0f}/s ━", style="green")
    return Text("╌╌ ✂ ╌╌", style="red")


def _node(scene: Scene, view: NodeView) -> list[RenderableType]:
    """Return the cells of a node: its state, its actors, its traffic."""
    sign, style = _STYLES[view.state]
    cells: list[RenderableType] = [Text(f"{sign} {view.name}", style=f"bold {style}")]
    if view.state not in ("up", "unreachable"):
        return [*cells, Text(view.state, style=style), "", Text(f"pid {view.pid}", style="dim")]
    roles = [
        *([_chief(scene, view.name)] if view.name in ("A", scene.host) else []),
        *([f"{len(SUBJECTS)} sensors"] if view.name in ("A", "D") else []),
    ]
    unreachable = [] if view.state == "up" else [Text("out of reach", style=style)]
    lines = [*unreachable, *map(Text, roles), Text(), Text()]
    return [*cells, *lines[:2], Text(_traffic(view), style="dim")]


def _traffic(view: NodeView) -> str:
    """Return a node's peers, and the topic messages per second that it sends and receives."""
    out, back = view.published_rate.per_second, view.received_rate.per_second
    peers = f"{view.peers} peer" + "s" * (view.peers != 1)
    return f"{peers} ↑{out:.0f} ↓{back:.0f} msg/s"


def _chief(scene: Scene, name: str) -> str:
    """Return the role of a node: overseer, aggregator, or both."""
    if name == scene.host:
        return "AGGREGATOR" if name != "A" else "overseer+AGG"
    return "overseer"


def figures(scene: Scene) -> RenderableType:
    """Return the machine as the aggregator sees it."""
    table = Table(box=None, expand=True, padding=(0, 1), header_style="dim")
    table.add_column("10 s at the aggregator", no_wrap=True)
    table.add_column("", no_wrap=True)
    for title in ("mean", "p95", "max"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("msg/s by topic", no_wrap=True)
    table.add_column("", no_wrap=True, overflow="ellipsis", ratio=1)
    for name in SUBJECTS:
        subject = scene.snapshot.get("subjects", {}).get(name)
        if subject is None:
            table.add_row(name, "", "", "", "", "", "")
            continue
        top = 100.0 if name in ("cpu", "memory") else None
        parts: dict[str, float] = {} if name == "memory" else subject["parts"]
        table.add_row(
            name,
            Text(sparkline(subject["history"], top), style="cyan"),
            *(amount(name, subject[key]) for key in ("mean", "p95", "max")),
            _topic_rates(scene, name),
            Text(", ".join(f"{part} {amount(name, value)}" for part, value in parts.items())),
        )
    counts = scene.snapshot.get("sensors", {})
    table.add_row("readings", "", "", "", "", f"{scene.topics_rate():.0f}", _counts(counts))
    return table


def _topic_rates(scene: Scene, subject: str) -> str:
    """Return the rate of each topic of a subject: `/metrics/A/cpu` is `A 10`."""
    return " ".join(
        f"{sensor_of(topic).partition('.')[0]} {rate.per_second:.0f}"
        for topic, rate in sorted(scene.topic_rates.items())
        if topic.endswith("/" + subject)
    )


def _counts(sensors: dict[str, dict[str, int]]) -> str:
    """Return the numbers of received and missed readings for each node."""
    texts = []
    for node in ("A", "D"):
        of_node = [count for sensor, count in sensors.items() if sensor.startswith(f"{node}.")]
        received = sum(count["received"] for count in of_node)
        missed = sum(count["missed"] for count in of_node)
        texts.append(f"from {node} {received:,}, missed {missed}")
    return " · ".join(texts)


def journey(scene: Scene) -> Text:
    """Return the route of the last traced reading."""
    last = scene.follower.last
    way = last.line() if last is not None else "…"
    number = "" if last is None else f" {last.number}"
    return Text.assemble(
        (f" reading{number} of A.cpu: ", "dim"), way, no_wrap=True, overflow="ellipsis"
    )


def analysis(scene: Scene) -> list[Text]:
    """Return the state of the analysis; empty without one."""
    status = scene.findings.status()
    return [Text(f" {status}", no_wrap=True)] if status else []


def store(scene: Scene) -> Text:
    """Return the state of the store, and below it the contents of its clone on A."""
    texts = []
    for subject in SUBJECTS:
        levels = [
            scene.holdings.shown.get(f"A.{subject} {kind}") for kind in ("latest", "peak")
        ]
        latest, peak = (None if level is None else amount(subject, level) for level in levels)
        if latest and peak:
            texts.append(f"{subject} {latest} / {peak}")
    return Text.assemble(
        f" {scene.holdings.status()}\n",
        (" clone on A, now / peak of 60 s: ", "dim"),
        " · ".join(texts) or "…",
        no_wrap=True,
        overflow="ellipsis",
    )


def log(events: Iterable[tuple[SceneEvent, float]]) -> Text:
    """Return the log, one event per line."""
    lines = [
        Text(event_line(event, seconds), style=_TONES[event.tone]) for event, seconds in events
    ]
    return Text("\n", no_wrap=True, overflow="ellipsis").join(lines)


def amount(subject: str, value: float) -> str:
    """Format a figure with its unit: percent, or bytes per second."""
    if subject not in ("disk", "network"):
        return f"{value:.0f} %"
    for unit in ("B/s", "kB/s", "MB/s"):
        if value < 1000:
            digits = 0 if value >= 10 or unit == "B/s" else 1
            return f"{value:.{digits}f} {unit}"
        value /= 1000
    return f"{value:.1f} GB/s"


def sparkline(values: Iterable[float], top: float | None = None) -> str:
    """Format values as bars; `top` is the full height, by default the largest value."""
    row = list(values)
    highest = max(top or max(row, default=0.0), 1e-9)
    steps = len(BARS) - 1
    return "".join(BARS[min(round(steps * value / highest), steps)] for value in row)
