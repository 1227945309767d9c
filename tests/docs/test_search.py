"""The search of the docs finds an answer to each of 25 terms among its first three results."""

import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from scripts.docs_search import FIRST, TERMS, english, missed, read_index, search

ROOT = Path(__file__).parents[2]

#: Runs Sphinx's own search for each term; prints the pages of its results.
DRIVER = r"""
const fs = require("fs"), vm = require("vm"), folder = process.argv[2];
const element = { dataset: {}, appendChild: () => element, classList: { add: () => {} } };
const context = vm.createContext({
  document: { getElementById: () => null, documentElement: element, readyState: "loading",
    addEventListener: () => {}, createElement: () => element, body: element },
  location: { search: "" }, localStorage: { setItem: () => {} },
  DOCUMENTATION_OPTIONS: {}, SPHINX_HIGHLIGHT_ENABLED: false, _ready: () => {},
  _: (text) => text,
  console, URLSearchParams,
});
context.window = context;
for (const name of ["_static/language_data.js", "_static/searchtools.js", "searchindex.js"])
  vm.runInContext(fs.readFileSync(`${folder}/${name}`, "utf8"), context);
context.terms = JSON.parse(process.argv[3]);
vm.runInContext(`found = terms.map((term) =>
  Search._performSearch(...Search._parseQuery(term)).reverse()
    .map((item) => [item[0], item[1], item[2], item[4]]))`, context);
console.log(JSON.stringify(context.found));
"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built pages: those of `make docs`, or pages that are built for this test."""
    if built := os.environ.get("CALLBOARD_BUILT_DOCS"):
        return Path(built)
    if find_spec("sphinx") is None:
        pytest.skip("needs Sphinx: make .venv/.docs")
    folder = tmp_path_factory.mktemp("pages")
    command = [sys.executable, "-m", "sphinx", "-Q", "-b", "html", "docs", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=600)
    return folder


@pytest.mark.slow
@pytest.mark.timeout(700)
def test_each_term_has_its_answer_among_the_first_three(pages: Path) -> None:
    assert len(TERMS) == 25
    assert not missed(read_index(pages), *english())


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("node"), reason="needs Node.js")
def test_the_results_are_those_of_the_search_in_the_browser(
    pages: Path, tmp_path: Path
) -> None:
    (tmp_path / "driver.js").write_text(DRIVER)
    queries = [*TERMS, "node", "entities journal", "ask", "Node.listen", "mailbox"]
    command = ["node", str(tmp_path / "driver.js"), str(pages), json.dumps(queries)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)

    index, (stem, stopwords) = read_index(pages), english()
    for query, theirs in zip(queries, json.loads(done.stdout), strict=True):
        ours = search(index, query, stem, stopwords)
        assert [list(result) for result in ours[:FIRST]] == theirs[:FIRST], query


def index_of(**tables: object) -> dict[str, object]:
    pages = ["a", "b", "c", "d"]
    empty = {"docnames": pages, "titles": [page.upper() for page in pages], "alltitles": {}}
    empty |= {"indexentries": {}, "objects": {}, "objnames": {}, "terms": {}, "titleterms": {}}
    return empty | tables


def found(query: str, **tables: object) -> list[str]:
    return [result.page for result in search(index_of(**tables), query, str, {"the"})]


def test_an_entry_of_an_index_directive_is_before_titles_and_words() -> None:
    tables = {
        "alltitles": {"Docker": [[0, "x"]]},
        "terms": {"docker": [1, 2]},
        "indexentries": {"docker": [[3, "index-0", "main"]]},
    }
    assert found("docker", **tables) == ["d", "a", "b", "c"]


def test_a_page_needs_all_words_of_a_query_but_stop_words() -> None:
    tables = {"terms": {"rate": [0, 1], "limit": [1, 2]}}
    assert found("the rate limit", **tables) == ["b"]


def test_a_term_without_its_page_is_reported() -> None:
    lines = missed(index_of(terms={"docker": 0}), str, set())
    assert lines[0] == "docker: containers is not among a"
    assert len(lines) == len(TERMS)
