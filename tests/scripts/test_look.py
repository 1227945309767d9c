"""Pages with mistakes that only a browser shows, and one without."""

import pytest

from scripts.look import main

PAGE = "<!doctype html><meta name=viewport content='width=device-width'><article>{}</article>"
DRAWING = (
    '<svg class="cb" width="200" height="40"><rect width="200" height="40" fill="{}"/>{}</svg>'
)
TEXT = '<text x="10" y="25" fill="#ffffff">words</text>'


@pytest.mark.slow
@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("<p>words</p>" + DRAWING.format("#000000", TEXT), ""),
        ("<div style='width:900px;background:red'>wide</div>", "390 wide, light: is 9"),
        ("<img src='nowhere.png' width=20 height=20>", "no image"),
        (DRAWING.format("#eeeeee", TEXT), "contrast 1.2: words"),
    ],
)
def test_mistakes_of_a_page_are_told(content, problem, tmp_path, capsys):
    (tmp_path / "page.html").write_text(PAGE.format(content))

    code = main([str(tmp_path)])

    printed = capsys.readouterr().out
    if printed == "":
        pytest.skip("needs a browser")
    assert code == int(bool(problem))
    assert problem in printed
    assert (printed == "all pages are in order\n") is (problem == "")
