"""The files of the pages are small, complete, and load no foreign content."""

import gzip
import re
from pathlib import Path

import pytest

import callboard.dashboard
from callboard.dashboard.assets import assets
from scripts.vendor import LIMIT, PACKAGES

FILES = Path(callboard.dashboard.__file__).parent / "files"
MODULES = ["app.js", *(f"{file.parent.name}/{file.name}" for file in FILES.glob("[cp]*/*.js"))]


def test_all_files_together_are_small():
    assert sum(len(asset.packed) for asset in assets().values()) <= LIMIT


def test_every_vendored_package_has_its_licence():
    licences = assets()["vendor/LICENSES.txt"].plain.decode()
    for package in PACKAGES:
        assert f"{package.name} {package.version}" in licences
        assert all(f"vendor/{name}" in assets() for name in package.files.values())


def test_the_page_loads_no_foreign_content_and_renders_text_as_text():
    for name in ("index.html", "style.css", *MODULES):
        text = (FILES / name).read_text()
        assert not re.search(r"https?://|//cdn", text), name
        assert "innerHTML" not in text
        assert not re.search(r"<script>|\son\w+=\"|style=\"", text), name


def test_the_page_fetches_all_its_modules_at_once():
    page = assets()[""].plain.decode()
    preloaded = re.findall(r'rel="modulepreload" href="static/(.+)"', page)

    assert sorted(preloaded) == sorted({"vendor/preact.js", *MODULES} - {"app.js"})


def test_a_module_imports_what_exists_and_pages_do_not_import_each_other():
    exports = {
        name: set(re.findall(r"^export const (\w+)", (FILES / name).read_text(), re.MULTILINE))
        for name in MODULES
    }
    for name in MODULES:
        imports = re.findall(r'import \{([^}]+)\} from "(.+)";', (FILES / name).read_text())
        for names, path in imports:
            target = (
                (FILES / name).parent.joinpath(path).resolve().relative_to(FILES).as_posix()
            )
            if target == "vendor/preact.js":
                continue
            assert {part.strip() for part in names.split(",")} - {""} <= exports[target], name
            assert not (name.startswith("pages/") and target.startswith("pages/")), name


def test_the_page_contains_its_style_frame_and_menu():
    page = assets()[""].plain.decode()
    assert "<style>" in page
    assert 'rel="stylesheet"' not in page
    frame = re.findall(r'<a href="#/(\w+)">(\w+)</a>', page)
    titles = re.findall(r'(\w+): \["(\w+)", ', (FILES / "app.js").read_text())
    assert frame == titles
    pages = {file.stem for file in (FILES / "pages").glob("*.js")}
    assert pages == {path for path, _ in frame} | {"actor"}  # the page of one row of another


@pytest.mark.parametrize(
    ("accepted", "is_packed"),
    [
        ("gzip, deflate, br", True),
        ("br;q=1.0, GZIP;q=0.5", True),
        ("gzip;q=0", False),
        ("", False),
        ("identity", False),
        ("notgzip", False),
    ],
)
def test_a_file_is_compressed_for_clients_that_accept_it(cluster, accepted, is_packed):
    status, body, headers = cluster.client.ask(
        "static/vendor/uPlot.js", Accept_Encoding=accepted or "identity"
    )

    assert status == 200
    assert (headers["Content-Encoding"] == "gzip") == is_packed
    assert headers["Vary"] == "Accept-Encoding"
    assert (gzip.decompress(body) if is_packed else body).startswith(b"/*!")


@pytest.mark.parametrize("path", ["", "static/app.js", "static/vendor/preact.js"])
def test_a_file_in_the_browsers_cache_is_not_sent_again(cluster, path):
    _, _, headers = cluster.client.ask(path)

    status, body, again = cluster.client.ask(path, If_None_Match=f'"x", {headers["ETag"]}')

    assert (status, body) == (304, b"")
    assert again["Content-Security-Policy"] == headers["Content-Security-Policy"]
    assert cluster.client.ask(path, If_None_Match='"x"')[0] == 200


@pytest.mark.parametrize(
    "path", ["../app.py", "..%2fapp.py", "", "vendor", "vendor/", "index.html", "%00", "x.gz"]
)
def test_no_other_file_is_sent(cluster, path):
    status, body, _ = cluster.client.ask(f"static/{path}")

    assert status == 404
    assert b"import" not in body


def test_the_content_policy_allows_only_the_style_of_the_page(cluster):
    _, _, headers = cluster.client.ask("")
    _, _, others = cluster.client.ask("static/app.js")

    (policy,) = headers.get_all("Content-Security-Policy")
    assert "style-src 'self' 'sha256-" in policy
    assert "unsafe" not in policy
    assert "sha256" not in others["Content-Security-Policy"]


def test_text_has_enough_contrast_in_light_and_dark():
    style = (FILES / "style.css").read_text()
    themes = [
        dict(re.findall(r"--(\w+):(#[0-9a-f]{3,6})", each)) for each in style.split("\n")[:2]
    ]
    assert len(themes) == 2
    for theme in themes:
        for text in ("ink", "dim", "accent", "good", "bad", "warn", "flow"):
            for behind in ("bg", "card", "soft"):
                assert contrast(theme[text], theme[behind]) >= 4.5, (text, behind)


def contrast(one, other):
    """WCAG 2.2, section 1.4.3."""
    first, second = sorted((luminance(one), luminance(other)), reverse=True)
    return (first + 0.05) / (second + 0.05)


def luminance(color):
    digits = color[1:] if len(color) == 7 else "".join(each * 2 for each in color[1:])
    parts = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    parts = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]
