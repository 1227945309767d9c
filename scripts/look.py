"""Check each built page as a reader sees it: `python -m scripts.look docs/_build [FOLDER]`.

In a real browser, 390 and 1280 pixels wide, in light and dark: nothing is wider than the page,
images load, and texts of drawings can be read on what they stand on. With a folder it takes a
picture of each page there.
"""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from tests.callboard.dashboard.browser import Browser, a_browser, why_not

WIDTHS: Final = (390, 1280)

#: Contrast of a text with its background, from 1 to 21: the minimum of WCAG 2 for text of that
#: size.
CONTRAST: Final = 4.5

_PROBLEMS: Final = """
const problems = [], wide = document.documentElement
if (wide.scrollWidth > wide.clientWidth) {
  const causes = [...document.querySelectorAll('article *')].filter((each) => {
    const box = each.getBoundingClientRect()
    const isOutside = box.right > wide.clientWidth + 1 && box.width > 0
    return isOutside && !each.closest('pre, .table-wrapper')
  })
  const first = causes[0]
  problems.push(`is ${wide.scrollWidth} wide: ` + (first ? first.outerHTML.slice(0, 120) : ''))
}
for (const image of document.images) {
  if (image.offsetParent !== null && !image.naturalWidth) problems.push(`no image ${image.src}`)
}
const channels = (color) => (color.match(/[\\d.]+/g) || []).map(Number)
const luminance = (color) => channels(color).slice(0, 3).map((c) => c / 255)
  .map((c) => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
  .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0)
const isSeen = (color) => color.startsWith('rgb') && channels(color)[3] !== 0
const paper = getComputedStyle(document.body).backgroundColor
for (const text of document.querySelectorAll('svg.cb text')) {
  const at = text.getBoundingClientRect(), x = at.x + at.width / 2, y = at.y + at.height / 2
  let behind = paper
  for (const shape of text.closest('svg').querySelectorAll('rect')) {
    const box = shape.getBoundingClientRect(), fill = getComputedStyle(shape).fill
    const isBehind = box.left < x && x < box.right && box.top < y && y < box.bottom
    if (isSeen(fill) && isBehind) behind = fill
  }
  const one = luminance(getComputedStyle(text).fill), other = luminance(behind)
  const ratio = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05)
  if (ratio < arguments[0]) problems.push(`contrast ${ratio.toFixed(1)}: ${text.textContent}`)
}
return problems
"""


def problems(browser: Browser, page: Path, pictures: Path | None = None) -> Iterator[str]:
    """Yield the problems of a page."""
    for width in WIDTHS:
        browser.size(width, 900, is_phone=width < 500)
        browser.open(page.resolve().as_uri())
        for is_dark in (False, True):
            browser.dark(is_dark)
            found: Any = browser.script(_PROBLEMS, CONTRAST)
            mode = "dark" if is_dark else "light"
            yield from (f"{page}: {width} wide, {mode}: {each}" for each in found)
            if pictures is not None:
                name = f"{'-'.join(page.with_suffix('').parts[-2:])}-{width}-{mode}.png"
                browser.driver.save_screenshot(str(pictures / name))


def main(arguments: Sequence[str]) -> int:
    """Print the problems of the pages in a folder; return 1 if there are any."""
    if reason := why_not():
        print(f"not looked at: {reason}", file=sys.stderr)
        return 0
    folder, *rest = (Path(each) for each in arguments)
    found = []
    for pictures in rest:
        pictures.mkdir(parents=True, exist_ok=True)
    with a_browser() as browser:
        for page in sorted(folder.rglob("*.html")):
            found += problems(browser, page, *rest)
    print("\n".join(found) or "all pages are in order")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
