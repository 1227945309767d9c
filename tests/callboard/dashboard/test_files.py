"""The files of the pages: small, complete, and nothing that comes from elsewhere."""

import re
from pathlib import Path

import callboard.dashboard
from scripts.vendor import LIMIT, PACKAGES

FILES = Path(callboard.dashboard.__file__).parent / "files"


def test_all_files_together_are_small():
    assert sum(each.stat().st_size for each in FILES.rglob("*") if each.is_file()) <= LIMIT


def test_each_package_is_there_with_its_licence():
    licences = (FILES / "vendor" / "LICENSES.txt").read_text()
    for package in PACKAGES:
        assert f"{package.name} {package.version}" in licences
        assert all((FILES / "vendor" / name).is_file() for name in package.files.values())


def test_nothing_is_fetched_from_elsewhere_and_no_markup_is_made_of_text():
    for name in ("index.html", "app.js", "style.css"):
        text = (FILES / name).read_text()
        assert not re.search(r"https?://|//cdn", text), name
        assert "innerHTML" not in text
        assert not re.search(r"<script>|\son\w+=\"|style=\"", text), name
