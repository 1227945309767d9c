"""Check that the search of the built pages finds an answer to what people type.

`python -m scripts.docs_search docs/_build` prints each of the `TERMS` whose page is not among
the first three results. `python -m scripts.docs_search docs/_build WORD…` prints the results.

The ranking is that of Sphinx's `searchtools.js`, which runs in the browser: titles, entries of
`{index}` directives, names of objects, and words of the pages, each with its score. A test
compares it with that file where Node.js is installed.
"""

import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

#: What people type, and the page that answers it.
TERMS: Final = {
    "docker": "containers",
    "compose": "containers",
    "kubernetes": "containers",
    "django": "web",
    "fastapi": "web",
    "saga": "recipes",
    "leak": "recipes",
    "backup": "backup",
    "restore": "backup",
    "rate limit": "recipes",
    "jupyter": "recipes",
    "pandas": "recipes",
    "windows": "platforms",
    "macos": "platforms",
    "pypy": "platforms",
    "free-threaded": "platforms",
    "rotate": "recipes",
    "upgrade": "compatibility",
    "downgrade": "compatibility",
    "signal": "recipes",
    "fork": "recipes",
    "finalizer": "recipes",
    "exceptions": "recipes",
    "logging": "recipes",
    "systemd": "operations",
}

#: Results of which one has to be the page.
FIRST: Final = 3

#: Scores of Sphinx.
_TITLE, _PART_OF_TITLE, _WORD, _PART_OF_WORD = 15, 7, 5, 2
_NAME, _PART_OF_NAME = 11, 6
_PRIORITIES: Final = {0: 15, 1: 5, 2: -5}

Stem = Callable[[str], str]


class Result(NamedTuple):
    """A result: the page, its title in the list, its anchor, and its score."""

    page: str
    title: str
    anchor: str
    score: int


def read_index(folder: Path) -> dict[str, Any]:
    """Return the search index of built pages."""
    text = (folder / "searchindex.js").read_text(encoding="utf-8")
    index: dict[str, Any] = json.loads(text[text.index("(") + 1 : text.rindex(")")])
    return index


def search(index: dict[str, Any], query: str, stem: Stem, stopwords: set[str]) -> list[Result]:
    """Return the results of a query, the best first."""
    text = query.lower().strip()
    words = [word for word in re.split(r"\W+", text) if word]
    main = [*_titles(index, text), *_entries(index, text, is_main=True)]
    for word in words:
        main += _objects(index, word, set(words))
    wanted = {stem(word) for word in words if word not in stopwords and not word.isdigit()}
    main += _words(index, wanted)
    others = list(_entries(index, text, is_main=False))
    results = [*sorted(main, key=_order), *sorted(others, key=_order)]
    best: dict[tuple[str, str, str], Result] = {}
    for result in results:
        best.setdefault(result[:3], result)
    return list(best.values())


def _order(result: Result) -> tuple[int, str]:
    """Return the key by which results are sorted."""
    return -result.score, result.title.lower()


def _round(number: float) -> int:
    """Round as JavaScript does."""
    return int(number + 0.5)


def _titles(index: dict[str, Any], text: str) -> Iterator[Result]:
    """Yield headings that contain the query and are at most twice as long."""
    names, titles = index["docnames"], index["titles"]
    for title, places in index["alltitles"].items():
        if text in title.lower().strip() and len(text) >= len(title) / 2:
            for page, anchor in places:
                is_page = titles[page] == title
                shown = title if is_page else f"{titles[page]} > {title}"
                score = _round(_TITLE * len(text) / len(title)) + is_page
                yield Result(names[page], shown, f"#{anchor}" if anchor else "", score)


def _entries(index: dict[str, Any], text: str, *, is_main: bool) -> Iterator[Result]:
    """Yield entries of index directives."""
    for entry, places in index["indexentries"].items():
        if text in entry and len(text) >= len(entry) / 2:
            for page, anchor, main in places:
                if bool(main) is is_main:
                    score = _round(100 * len(text) / len(entry))
                    title = index["titles"][page]
                    yield Result(index["docnames"][page], title, f"#{anchor}", score)


def _objects(index: dict[str, Any], word: str, words: set[str]) -> Iterator[Result]:
    """Yield documented names."""
    for prefix, matches in index["objects"].items():
        for page, kind, priority, anchor, name in matches:
            full = f"{prefix}.{name}" if prefix else name
            last = full.lower().rpartition(".")[2]
            if word not in full.lower():
                continue
            label, title = index["objnames"][str(kind)][2], index["titles"][page]
            haystack = f"{prefix} {name} {label} {title}".lower()
            if any(other not in haystack for other in words - {word}):
                continue
            score = _PRIORITIES.get(priority, 0)
            if word in (full.lower(), last):
                score += _NAME
            elif word in last:
                score += _PART_OF_NAME
            short = {"": full, "-": f"{index['objnames'][str(kind)][1]}-{full}"}
            place = f"#{short.get(anchor, anchor)}"
            yield Result(index["docnames"][page], full, place, score)


def _words(index: dict[str, Any], wanted: set[str]) -> Iterator[Result]:
    """Yield pages with the words."""
    scores: dict[int, dict[str, int]] = {}
    for word in wanted:
        for pages, score in _pages_of(index["terms"], index["titleterms"], word):
            for page in pages if isinstance(pages, list) else [pages]:
                scores.setdefault(page, {})[word] = score  # a later score replaces this one
    long_words = sum(len(word) > 2 for word in wanted)
    for page, by_word in scores.items():
        if len(by_word) in (len(wanted), long_words):
            score = max(by_word.values())
            yield Result(index["docnames"][page], index["titles"][page], "", score)


def _pages_of(
    terms: dict[str, Any], titles: dict[str, Any], word: str
) -> Iterator[tuple[Any, int]]:
    """Yield the pages with a word, and then those with words that contain it, with scores."""
    for table, score in ((terms, _WORD), (titles, _TITLE)):
        if word in table:
            yield table[word], score
    for table, score in ((terms, _PART_OF_WORD), (titles, _PART_OF_TITLE)):
        if len(word) > 2 and word not in table:
            yield from ((pages, score) for term, pages in table.items() if word in term)


def missed(index: dict[str, Any], stem: Stem, stopwords: set[str]) -> list[str]:
    """Return a line for each term whose page is not among the first results."""
    lines = []
    for term, page in TERMS.items():
        first = [result.page for result in search(index, term, stem, stopwords)[:FIRST]]
        if page not in first:
            lines.append(f"{term}: {page} is not among {', '.join(first) or 'no results'}")
    return lines


def english() -> tuple[Stem, set[str]]:
    """Return the stemmer and the stop words of Sphinx's search."""
    from sphinx.search.en import SearchEnglish

    language = SearchEnglish({})
    return language.stem, set(language.stopwords)


def main(folder: str, *words: str) -> int:
    """Print the terms without an answer, or the results of a query; return the exit code."""
    index, (stem, stopwords) = read_index(Path(folder)), english()
    if words:
        for result in search(index, " ".join(words), stem, stopwords)[:10]:
            print(result.score, f"{result.page}{result.anchor}", result.title)
        return 0
    lines = missed(index, stem, stopwords)
    print(*lines, sep="\n", end="\n" if lines else "")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
