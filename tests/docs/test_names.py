"""What pages name exists: files, modules, classes and tests of the project."""

import importlib
import re
from functools import cache

import pytest

from tests.docs.prose import ROOT, code_spans

#: A path from the root, or from the package: `callboard/actors` is the folder `actors`.
FOLDERS = (
    *("actors", "basp", "benchmarks", "callboard", "deploy", "docs", "examples", "proxies"),
    *("requirements", "scripts", "tests"),
)
PATH = re.compile(rf"(?:{'|'.join(FOLDERS)})/[\w./@-]+")
DOTTED_NAME = re.compile(r"callboard(?:\.\w+)+(?=$|\()")
CLASS_NAME = re.compile(r"(?<![\w.'\"/$-])([A-Z][a-z0-9]+(?:[A-Z][a-z0-9]*)+)(?![\w'\"/-])")
CALLED_NAME = re.compile(r"\b([A-Za-z_]\w*)\(")
TEST_NAME = re.compile(r"test_\w+")

#: Names that begin like a module and are something else.
OTHER_NAMES = {
    "callboard.audit": "a logger",
    "callboard.nodes": "a logger",
    "callboard.wires": "a group of entry points",
    "callboard.node_wires": "a group of entry points",
    "callboard.base": "a key in a Parquet file",
    "callboard.end": "a key in a Parquet file",
    "callboard.fields": "a key in a Parquet file",
    "callboard.inferred": "a key in a Parquet file",
    "callboard.offsets": "a key in a Parquet file",
    "callboard.templates": "a key in a Parquet file",
    "callboard.unknown": "a key in a Parquet file",
}
#: Attributes of spans, which docs/tracing.md lists.
SPAN_PAGE = "docs/tracing.md"
#: Classes of other projects.
FOREIGN_CLASSES = {
    *("ActorDeadError", "ActorPool", "GetTimeoutError", "RayActorError", "RayTaskError"),
    *("ActorTypeDispatcher", "BatchSpanProcessor", "SparkContext", "SparkSubmit"),
    *("KillMode", "TimeoutStopSec", "WatchdogSec"),
}
#: Pages about programs of other projects, and functions of gunicorn and Zeek.
FOREIGN_PAGES = re.compile(r"docs/(from-\w+|comparisons/\w[\w-]*)\.md")
FOREIGN_FUNCTIONS = {"listen_websocket", "post_fork"}
#: The file of tests that a reader of docs/testing.md writes.
READERS_TESTS = {"test_shop"}


@cache
def words_of_the_sources() -> frozenset[str]:
    """Return every word in the sources, the tests and what is beside them."""
    words: set[str] = set()
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in {".py", ".js", ".toml"} and "_build" not in path.parts:
                words.update(re.findall(r"\w+", path.read_text(encoding="utf-8")))
    return frozenset(words)


@cache
def names_of_tests() -> frozenset[str]:
    """Return the names of all test functions and files of tests."""
    names: set[str] = set()
    for folder in (ROOT / "tests", ROOT / "examples"):
        for path in folder.rglob("test_*.py"):
            names.add(path.stem)
            names.update(re.findall(r"\bdef (test_\w+)", path.read_text(encoding="utf-8")))
    return frozenset(names)


def exists(name: str) -> bool:
    """Return whether a dotted name is a module, or an attribute of one."""
    module, *attributes = name.split(".")
    target = importlib.import_module(module)
    for attribute in attributes:
        module = f"{module}.{attribute}"
        if hasattr(target, attribute):
            target = getattr(target, attribute)
            continue
        try:
            target = importlib.import_module(module)
        except ImportError:
            return False
    return True


def test_files_that_pages_name_exist():
    missing = []
    for page, span in code_spans():
        path = span.partition("::")[0]
        if not PATH.fullmatch(path) or "NUMBER" in path:
            continue
        of_package = path.removeprefix("callboard/")
        if not any((ROOT / place).exists() for place in (path, of_package)):
            missing.append(f"{page}: {span}")

    assert missing == []


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the changelog has former names
def test_dotted_names_that_pages_mention_can_be_imported():
    names = [
        (page, match.group())
        for page, span in code_spans()
        if page != SPAN_PAGE
        if (match := DOTTED_NAME.match(span))
    ]

    assert len(names) > 40
    missing = {
        (page, name) for page, name in names if name not in OTHER_NAMES and not exists(name)
    }
    assert missing == set()


def test_classes_that_pages_name_exist():
    missing = {
        (page, name)
        for page, span in code_spans()
        for name in CLASS_NAME.findall(span)
        if name not in FOREIGN_CLASSES and name not in words_of_the_sources()
    }

    assert missing == set()


def test_functions_that_pages_call_exist():
    missing = {
        (page, name)
        for page, span in code_spans()
        if not FOREIGN_PAGES.fullmatch(page)
        for name in CALLED_NAME.findall(span)
        if name not in FOREIGN_FUNCTIONS and name not in words_of_the_sources()
    }

    assert missing == set()


def test_tests_that_pages_name_exist():
    missing = {
        (page, name)
        for page, span in code_spans()
        for name in TEST_NAME.findall(span)
        if name not in names_of_tests() | READERS_TESTS
    }

    assert missing == set()
