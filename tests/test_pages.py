"""The programs of the docs run as they stand: the blocks of a page in order, in one namespace.

What a block prints is compared with the comments behind its calls of `print`, in order; what
differs from run to run stands as … there.
"""

import re
import sys
from contextlib import suppress
from pathlib import Path
from types import ModuleType

import pytest
from pygments.lexers import get_lexer_by_name
from pygments.token import Error
from pygments.util import ClassNotFound
from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser

from callboard.basp.registry import DEFAULT_REGISTRY
from callboard.commitlog import ExtraMissing

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
#: Pages whose blocks are files of a program, or tests, with how they are run.
ELSEWHERE = {
    "caf.md": "interop/test_caf_tutorial.py",
    "pipeline.md": "callboard/pipeline/test_spark.py",
    "kill-the-owner.md": "test_kill_the_owner.py",
    "lost-update.md": "test_testing_guide.py",
    "testing.md": "test_testing_guide.py",
    "tutorial.md": "test_tutorial.py",
    "web.md": "test_web.py",
    "tutorial-cluster.md": "test_tutorial_cluster.py",
    "tutorial-spark.md": "callboard/pipeline/test_spark.py",
}
PAGES = [
    path.relative_to(ROOT).as_posix()
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    if "\n```python\n" in path.read_text() and path.name not in ELSEWHERE
]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.DOTALL | re.MULTILINE)
SAID = re.compile(r"^ *print\(.*\)  +# (.*)$", re.MULTILINE)


def is_own(kind):
    return kind.cls.__module__.startswith("callboard.")


@pytest.fixture(autouse=True)
def _forget_the_types_of_the_page():
    """Many pages have a shop."""
    tables = (DEFAULT_REGISTRY.by_name, DEFAULT_REGISTRY.by_class, DEFAULT_REGISTRY.flat)
    known = [(table, dict(table)) for table in tables]
    yield
    for table, before in known:
        # A room of ours that a page was the first to import stays imported.
        own = {key: kind for key, kind in table.items() if is_own(kind)}
        table.clear()
        table.update(own)
        table.update(before)


def test_each_block_can_be_read_by_the_lexer_that_it_names():
    """The docs are built with warnings as errors, long after this."""
    texts = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    blocks = [(page, block) for page in texts for block in BLOCK.findall(page.read_text())]
    assert len(blocks) > 100
    for page, (language, block) in blocks:
        with suppress(ClassNotFound):
            kinds = {kind for kind, _ in get_lexer_by_name(language).get_tokens(block)}
            assert Error not in kinds, f"{page.name}: no {language}: {block}"


@pytest.mark.parametrize("page", PAGES)
def test_the_programs_of_a_page_run_as_they_stand(page, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    document = Sybil([PythonCodeBlockParser()], path=str(ROOT)).parse(ROOT / page)
    program = ModuleType(f"page_{Path(page).stem}")
    monkeypatch.setitem(sys.modules, program.__name__, program)  # where classes are looked up
    document.namespace = vars(program)

    for block in document.examples():
        try:
            block.evaluate()
        except (ExtraMissing, ModuleNotFoundError) as error:
            if isinstance(error, ModuleNotFoundError) and page != "docs/tracing.md":
                raise
            pytest.skip(str(error))

        printed = capsys.readouterr().out
        for part in re.split("…|\n", "\n".join(SAID.findall(block.parsed))):
            assert part.strip() in printed, f"{page}:{block.line} printed {printed!r}"
            printed = printed[printed.index(part.strip()) + len(part.strip()) :]


BLOCKS = list(
    Sybil([PythonCodeBlockParser()], path=str(ROOT)).parse(ROOT / "README.md").examples()
)


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: f"line {block.line}")
def test_each_program_of_the_readme_runs_alone(block, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    program = ModuleType(f"readme_{block.line}")
    monkeypatch.setitem(sys.modules, program.__name__, program)
    block.document.namespace = vars(program)

    block.evaluate()

    printed = capsys.readouterr().out
    assert all(said.strip() in printed for said in SAID.findall(block.parsed))


def test_pages_that_run_elsewhere_are_run():
    assert all((ROOT / "tests" / test).is_file() for test in ELSEWHERE.values())
    assert all((ROOT / "docs" / page).is_file() for page in ELSEWHERE)


def test_each_decision_stands_in_one_subject():
    folder = ROOT / "docs" / "decisions"
    text = re.sub(r"\n +", " ", (folder / "README.md").read_text())
    listed = re.findall(r"^- \[(.*)\]\((.*)\)$", text, re.MULTILINE)

    titles = {path.name: path.open().readline()[2:].strip() for path in folder.glob("0*.md")}
    assert len(titles) > 40
    assert sorted(name for _, name in listed) == sorted(titles)
    assert {name: title for title, name in listed} == titles


def test_links_of_the_readme_lead_to_files():
    links = re.findall(r"\]\((?!https?:|#)([^)#\s]+)", (ROOT / "README.md").read_text())

    assert len(links) > 5
    assert [link for link in links if not (ROOT / link).exists()] == []
