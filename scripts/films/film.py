"""A recording as one SVG: the pictures are side by side, and CSS steps from one to the next.

It needs no script, so it also moves in an `img`, and follows light and dark like the drawings.
A reader whose browser requests reduced motion sees the last picture.
"""

import re
from html import escape
from typing import Final

from scripts.films.cast import Cast
from scripts.films.terminal import Row, Run

__all__ = ["film", "still"]

_CELL: Final = 7.8
_LINE: Final = 16
_MARGIN: Final = 14
_BAR: Final = 30
#: Words with single blanks between them: SVG makes one of several.
_WORDS: Final = re.compile(r"\S+(?: \S+)*")

_LIGHT: Final = (
    "--paper:#f6f8fa;--rim:#afb8c1;--ink:#1f2328;--dim:#656d76;--red:#cf222e;--green:#116329;"
    "--yellow:#7d4e00;--blue:#0969da;--magenta:#8250df;--cyan:#1b6f7a;--white:#57606a"
)
_DARK: Final = (
    "--paper:#0d1117;--rim:#3d444d;--ink:#e6edf3;--dim:#8b949e;--red:#ff7b72;--green:#56d364;"
    "--yellow:#e3b341;--blue:#79c0ff;--magenta:#d2a8ff;--cyan:#56d4dd;--white:#c9d1d9"
)
# Lines are shown by `use`, in whose copies only selectors of one class match; all else reaches
# them by inheritance.
_STYLE: Final = f"""
.tty{{{_LIGHT};font:13px ui-monospace,Menlo,Consolas,"DejaVu Sans Mono",monospace;
fill:var(--ink)}}
@media (prefers-color-scheme:dark){{.tty{{{_DARK}}}}}
body[data-theme=light] .tty{{{_LIGHT}}}
body[data-theme=dark] .tty{{{_DARK}}}
.tty-b{{font-weight:700}}.tty-d{{fill:var(--dim)}}
.tty-paper{{fill:var(--paper);stroke:var(--rim)}}.tty-rim{{fill:var(--rim)}}
.tty-red{{fill:var(--red)}}.tty-green{{fill:var(--green)}}.tty-yellow{{fill:var(--yellow)}}
.tty-blue{{fill:var(--blue)}}.tty-magenta{{fill:var(--magenta)}}.tty-cyan{{fill:var(--cyan)}}
.tty-white{{fill:var(--white)}}.tty-r{{fill:var(--paper)}}
"""


def film(name: str, cast: Cast, rest: float) -> str:
    """Return a moving picture.

    Args:
        name: id of the picture, unique on its page.
        cast: the recording.
        rest: seconds for which the last picture is shown.
    """
    frames = list(cast.frames())
    begins = [0.0, *(seconds for seconds, _ in frames[1:])]
    length = begins[-1] + rest
    width, height = _size(cast)
    known: dict[Row, str] = {}
    pictures = []
    for number, (_, rows) in enumerate(frames):
        keys = (known.setdefault(row, f"{name}-{len(known)}") for row in rows)
        uses = "".join(
            f'<use href="#{key}" y="{_LINE * place}"/>'
            for place, (key, row) in enumerate(zip(keys, rows, strict=True))
            if row
        )
        pictures.append(f'<g transform="translate({width * number})">{uses}</g>')
    lines = "".join(f'<g id="{key}">{_line(row)}</g>' for row, key in known.items() if row)
    steps = "".join(
        f"{100 * begin / length:.2f}%{{transform:translateX({-width * number}px)}}"
        for number, begin in enumerate(begins)
    )
    last = f"transform:translateX({-width * (len(frames) - 1)}px)"
    style = (
        f"@keyframes {name}{{{steps}100%{{{last}}}}}"
        f".{name}{{animation:{name} {length:.1f}s step-end infinite}}"
        f"@media (prefers-reduced-motion:reduce){{.{name}{{animation:none;{last}}}}}"
    )
    content = (
        f'<svg x="0" y="{_BAR}" width="{width}" height="{height - _BAR}">'
        f'<defs>{lines}</defs><g class="{name}">' + "\n".join(pictures) + "</g></svg>"
    )
    return _window(cast, style, content)


def still(cast: Cast) -> str:
    """Return the last picture of a recording, without the empty lines at its end."""
    *_, (_, rows) = cast.frames()
    used = max(number for number, row in enumerate(rows, 1) if row)
    content = "\n".join(
        f'<g transform="translate(0 {_BAR + _LINE * number})">{_line(row)}</g>'
        for number, row in enumerate(rows)
        if row
    )
    return _window(Cast(cast.columns, used, cast.title, ()), "", content)


def _size(cast: Cast) -> tuple[int, int]:
    width = round(_CELL * cast.columns) + 2 * _MARGIN
    return width, _BAR + _LINE * cast.rows + _MARGIN


def _window(cast: Cast, style: str, content: str) -> str:
    width, height = _size(cast)
    knobs = "".join(f'<circle class="tty-rim" cx="{x}" cy="16" r="5"/>' for x in (20, 38, 56))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="tty" width="{width}" '
        f'height="{height}" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{escape(cast.title)}">\n<style>{_STYLE}{style}</style>\n'
        f'<rect class="tty-paper" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" '
        f'rx="8"/>{knobs}<text class="tty-d" x="{width / 2:g}" y="20" '
        f'text-anchor="middle">{escape(cast.title)}</text>\n{content}\n</svg>\n'
    )


def _line(row: Row) -> str:
    return "".join(_run(run) for run in row)


def _run(run: Run) -> str:
    """Return one run; its words are as wide as their cells in any font."""
    is_reversed = "r" in run.look.split()
    classes = " ".join(f"tty-{word}" for word in run.look.split())
    look = f' class="{classes}"' if classes else ""
    parts = []
    if is_reversed:
        x, width = _MARGIN + _CELL * run.column, _CELL * len(run.text)
        parts.append(f'<rect x="{x:.1f}" width="{width:.1f}" height="{_LINE}"/>')
    for words in _WORDS.finditer(run.text):
        x, width = _MARGIN + _CELL * (run.column + words.start()), _CELL * len(words[0])
        parts.append(
            f'<text x="{x:.1f}" y="12"{look} textLength="{width:.1f}" '
            f'lengthAdjust="spacingAndGlyphs">{escape(words[0], quote=False)}</text>'
        )
    return "".join(parts)
