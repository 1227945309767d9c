"""The protocol pages: each table can be made, and no layout of the code is missing."""

import ast
import re
from pathlib import Path

import pytest

from scripts.protocol_tables import TABLES, table

ROOT = Path(__file__).parents[3]
PAGES = sorted((ROOT / "docs" / "protocols").glob("*.md"))
BLOCK = re.compile(r"^```\{([a-z-]+)\} ?([^\n]*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
OPTION = re.compile(r"^:(\w+): (.*)$")
#: Structs of more than one field that are no layout of a protocol of ours.
NO_LAYOUT = {
    "callboard.cbor.writer:_pack_1": "a head of CBOR",
    "callboard.cbor.writer:_pack_2": "a head of CBOR",
    "callboard.cbor.writer:_pack_4": "a head of CBOR",
    "callboard.cbor.writer:_pack_8": "a head of CBOR",
    "callboard.cbor.writer:_pack_float": "a head of CBOR",
    "callboard.commitlog.batch:_CHECKED": "a part of _HEADER",
    "callboard.commitlog.batch:_START": "a part of _HEADER",
    "callboard.commitlog.folder:_FACTS": "a part of _MARK",
    "callboard.zeek.doors.zeromq_socket:_EVENT": "of libzmq, in the process",
    "callboard.zeek.json_message:_pack_real": "a head of CBOR",
    "callboard.zeek.transcoder:_PORT_FIELDS": "the same as in zeek.value",
    "callboard.zeek.transcoder:_pack_tagged": "a head of CBOR",
}


def blocks_of(page):
    for kind, target, body in BLOCK.findall(page.read_text()):
        if kind in TABLES:
            lines = body.splitlines()
            options = dict(found.groups() for line in lines if (found := OPTION.match(line)))
            yield kind, target, [line for line in lines if not OPTION.match(line)], options


def is_layout(node):
    """Whether an assignment makes a struct of several fields, by its text."""
    found = re.search(r"Struct\(['\"]([<>!=][^'\"]*)['\"]\)", ast.unparse(node))
    return bool(found) and len(re.sub(r"\d+(?=s)|\dx|\W", "", found[1])) > 1


def layouts():
    for room in ("actors", "basp", "proxies", "callboard"):
        for path in (ROOT / room).rglob("*.py"):
            module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            module = module if room == "callboard" else f"callboard.{module}"
            for node in ast.parse(path.read_text()).body:
                if isinstance(node, ast.Assign | ast.AnnAssign) and is_layout(node):
                    name = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
                    yield f"{module}:{ast.unparse(name)}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_each_table_of_a_page_can_be_made(page):
    for kind, target, lines, options in blocks_of(page):
        text = table(kind, target, lines, options)

        rows = text[text.index("|") :].splitlines()
        assert len(rows) > 2, (kind, target)
        assert len({line.replace("\\|", "").count("|") for line in rows}) == 1, text


@pytest.mark.slow
def test_each_layout_of_the_code_stands_on_a_page():
    shown = {target.partition("[")[0] for page in PAGES for _, target, *_ in blocks_of(page)}
    found = set(layouts())

    assert len(found) > 20
    assert sorted(found - shown - NO_LAYOUT.keys()) == []
    assert sorted(NO_LAYOUT.keys() - found) == []


def test_the_keys_of_a_ticket_are_those_that_the_server_reads():
    page = (ROOT / "docs" / "protocols" / "flight.md").read_text()
    server = (ROOT / "callboard" / "commitlog" / "remote" / "server.py").read_text()

    read = set(re.findall(r"request(?:\.get\(|\[)\"(\w+)\"", server))

    assert set(re.findall(r"^\| `(\w+)` \| (?:both|bytes|records)", page, re.MULTILINE)) == read


def test_the_pages_are_all_in_the_index():
    index = (ROOT / "docs" / "protocols" / "index.md").read_text()

    assert set(re.findall(r"\]\(([\w-]+\.md)\)", index)) == {
        page.name for page in PAGES if page.name != "index.md"
    }
