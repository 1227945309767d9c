"""Follow the links of built pages: `python -m scripts.links docs/_build`.

Each `href` and `src` that stays inside the folder has to lead to a file there, and each anchor
to an element of that page with this id. Links to other hosts are not followed.
"""

import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urldefrag, urlsplit


class _Page(HTMLParser):
    """Collects the ids of a page, and what it refers to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take an element's id and links."""
        for name, value in attrs:
            if value is None:
                continue
            if name == "id" or (tag == "a" and name == "name"):
                self.ids.add(value)
            elif name in ("href", "src"):
                self.links.append(value)


class BrokenLink(NamedTuple):
    """A broken link.

    Attributes:
        page: path of the page, in the folder.
        link: as the page has it.
        problem: what is missing.
    """

    page: str
    link: str
    problem: str


def broken_links(folder: Path) -> list[BrokenLink]:
    """Return the links of all pages of a folder that lead nowhere inside it."""
    folder = folder.resolve()
    pages = {path: _Page(path.read_text()) for path in sorted(folder.rglob("*.html"))}
    return [
        BrokenLink(path.relative_to(folder).as_posix(), link, problem)
        for path, page in pages.items()
        for link in dict.fromkeys(page.links)
        if (problem := _problem(pages, path, link))
    ]


def _problem(pages: dict[Path, _Page], path: Path, link: str) -> str:
    """Return the problem of a link on a page; empty if it has none."""
    address, anchor = urldefrag(link)
    parts = urlsplit(address)
    if parts.scheme or parts.netloc:
        return ""
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if not target.is_file():
        return "there is no such file"
    if anchor and target in pages and unquote(anchor) not in pages[target].ids:
        return "the page has no such anchor"
    return ""


def main(folder: str) -> int:
    """Print each broken link; return 1 if there is any."""
    broken = broken_links(Path(folder))
    for page, link, problem in broken:
        print(f"{page}: {link}: {problem}", file=sys.stderr)
    return bool(broken)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
