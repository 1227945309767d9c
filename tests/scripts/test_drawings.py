"""The drawings of the docs are what their sources make, and pages show them."""

import re
from xml.etree import ElementTree

import pytest

from scripts.drawings import house
from scripts.drawings.__main__ import main
from scripts.drawings.all import pictures
from scripts.drawings.picture import DoesNotFitError, Picture
from scripts.drawings.place import DOCS, ROOT

IMAGE = re.compile(r"!\[([^\]]*)\]\(([^)\s]+\.svg)\)")
#: Drawn once: each drawing takes a while.
PICTURES = pictures()
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]


def shown():
    """Return the alternative texts of each SVG that some page shows."""
    found = {}
    for page in PAGES:
        if "_build" not in page.parts:
            for text, path in IMAGE.findall(page.read_text()):
                found.setdefault((page.parent / path).resolve(), []).append(text)
    return found


def test_every_picture_is_what_its_source_makes(capsys):
    assert main(["--check"]) == 0, f"make drawings: {capsys.readouterr().out}"


def test_pictures_are_the_same_each_time_they_are_made():
    assert pictures() == PICTURES


def test_no_picture_is_left_whose_source_is_gone():
    left = {*DOCS.glob("drawings/*.svg"), *DOCS.glob("films/*.svg")}
    assert left <= set(PICTURES)


def test_every_picture_stands_on_a_page_and_says_what_it_shows():
    texts = shown()
    missing = [path.name for path in PICTURES if path not in texts]
    assert not missing
    assert all(len(text) > 20 for path in PICTURES for text in texts[path])


@pytest.mark.parametrize(
    "path",
    [path for path in PICTURES if path.parent.name != "films"],
    ids=lambda path: path.stem,
)
def test_a_picture_can_be_read_on_a_phone(path):
    root = ElementTree.fromstring(PICTURES[path])
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert int(root.attrib["width"]) <= 560


def test_what_does_not_fit_is_an_error():
    picture = Picture("small", width=100)
    with pytest.raises(DoesNotFitError):
        picture.text(8, 20, "a line that is longer than the sheet is wide")
    with pytest.raises(DoesNotFitError):
        picture.box(0, 0, 60, 30, "wider than its box")
    with pytest.raises(DoesNotFitError):
        picture.box(0, 0, 60, 30, "one", "two", "three")


def test_a_room_that_the_house_does_not_know_is_an_error(monkeypatch):
    monkeypatch.setattr(house, "HOLDS", {"cli": "the command line"})
    with pytest.raises(ValueError, match="basp"):
        house.draw()
