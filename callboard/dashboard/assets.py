"""Static files of the dashboard, kept in memory and served compressed, with ETags.

Third-party files are stored compressed in the wheel (`scripts.vendor`) and served unchanged.
The first paint needs only one response: the style sheet is inlined into the page (its
Content-Security-Policy allows the style by its hash), with the menu of `app.js` and links to
all modules, which the browser fetches at once.
"""

import base64
import gzip
import hashlib
import mimetypes
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

from callboard.dashboard.guard import HEADERS
from callboard.support.dataclass import dataclass

_FILES: Final = Path(__file__).parent / "files"

#: The tag that is replaced by the inlined style sheet.
STYLE: Final = '<link rel="stylesheet" href="static/style.css">'
#: The marks in the page that are replaced by links to the modules, and by the menu.
MODULES: Final = "<!--modules-->"
MENU: Final = "<!--menu-->"

#: A page with a title in the table of pages of `app.js`: `overview: ["Overview", Overview],`.
_MENU_ENTRY: Final = re.compile(r'^  (\w+): \["(.+?)", \w+\],$', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Asset:
    """One file: its bytes, plain and compressed, and its response headers."""

    plain: bytes
    packed: bytes
    headers: Mapping[str, str]

    def answer(self, asked: Mapping[str, str]) -> tuple[int, bytes, dict[str, str]]:
        """Return status, body and headers for a request with these lower-case headers."""
        headers = dict(self.headers)
        if headers["ETag"] in re.split(r"\s*,\s*", asked.get("if-none-match", "")):
            return 304, b"", headers
        if _takes_gzip(asked.get("accept-encoding", "")):
            headers["Content-Encoding"] = "gzip"
            return 200, self.packed, headers
        return 200, self.plain, headers


def _takes_gzip(accepted: str) -> bool:
    """Return whether an Accept-Encoding header allows gzip."""
    match = re.search(r"(?:^|,)\s*gzip\s*(?:;\s*q=([0-9.]+))?\s*(?:,|$)", accepted.lower())
    return match is not None and bool((match[1] or "1").strip("0."))


@cache
def assets() -> Mapping[str, Asset]:
    """Return all files by their path below `/static/`; the page itself has the path ""."""
    files = {}
    for file in sorted(_FILES.rglob("*")):
        if file.is_file() and file.name != "index.html":
            name, content = file.relative_to(_FILES).as_posix(), file.read_bytes()
            is_packed = name.endswith(".gz")
            files[name.removesuffix(".gz")] = _asset(
                name.removesuffix(".gz"),
                gzip.decompress(content) if is_packed else content,
                content if is_packed else gzip.compress(content, mtime=0),
            )
    return {**files, "": _page((_FILES / "index.html").read_text(), files)}


def _asset(name: str, plain: bytes, packed: bytes, **more: str) -> Asset:
    kind = mimetypes.guess_type(name)[0] or "text/plain"
    kind = (
        "text/javascript" if name.endswith(".js") else kind
    )  # some systems say application/javascript
    text = "; charset=utf-8" if kind.startswith("text/") else ""
    headers = {
        "Content-Type": f"{kind}{text}",
        "Cache-Control": "no-cache",
        "Vary": "Accept-Encoding",
        "ETag": f'"{hashlib.sha256(plain).hexdigest()[:32]}"',
    }
    return Asset(plain, packed, headers | more)


def _page(text: str, files: Mapping[str, Asset]) -> Asset:
    """Return the page with style, modules and menu, and a policy that allows this style."""
    style = files["style.css"].plain
    # Other modules of `vendor` are loaded by the pages that need them.
    modules = ["vendor/preact.js", *(name for name in files if name[:5] in ("core/", "pages"))]
    links = [f'<link rel="modulepreload" href="static/{name}">' for name in modules]
    entries = _MENU_ENTRY.findall(files["app.js"].plain.decode())
    menu = [f'<a href="#/{path}">{title}</a>' for path, title in entries]
    text = text.replace(STYLE, f"<style>{style.decode()}</style>")
    plain = text.replace(MODULES, "\n".join(links)).replace(MENU, "".join(menu)).encode()
    digest = base64.b64encode(hashlib.sha256(style).digest()).decode()
    policy = HEADERS["Content-Security-Policy"]
    policy = policy.replace("style-src 'self'", f"style-src 'self' 'sha256-{digest}'")
    headers = {"Content-Security-Policy": policy}
    return _asset("index.html", plain, gzip.compress(plain, mtime=0), **headers)
