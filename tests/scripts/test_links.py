"""The check of links: what leads nowhere is found, and nothing else."""

import pytest

from scripts.links import BrokenLink, broken_links, main

PAGE = '<a id="top"></a><a href="{}">on</a>'


@pytest.mark.parametrize(
    "link",
    ["b.html", "b.html#here", "#top", "sub/c.html", "https://example.org/x", "p%20q.png"],
)
def test_a_link_that_leads_somewhere_is_good(link, tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "c.html").write_text("<p id=x>")
    (tmp_path / "b.html").write_text('<h1 id="here">')
    (tmp_path / "p q.png").write_bytes(b"")
    (tmp_path / "a.html").write_text(PAGE.format(link))

    assert broken_links(tmp_path) == []


@pytest.mark.parametrize(
    ("link", "problem"),
    [
        ("gone.html", "there is no such file"),
        ("b.html#gone", "the page has no such anchor"),
        ("#gone", "the page has no such anchor"),
        ("../outside.html", "there is no such file"),
    ],
)
def test_a_link_that_leads_nowhere_is_told(link, problem, tmp_path, capsys):
    (tmp_path / "b.html").write_text('<h1 id="here">')
    (tmp_path / "a.html").write_text(PAGE.format(link))

    assert broken_links(tmp_path) == [BrokenLink("a.html", link, problem)]
    assert main(str(tmp_path)) == 1
    assert capsys.readouterr().err == f"a.html: {link}: {problem}\n"
