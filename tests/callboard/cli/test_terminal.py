"""Texts from other nodes reach an operator's terminal without control characters."""

import json
import logging
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import callboard.cli
from callboard import Actor, Node, handler
from callboard.cbor.plain import write_plain
from callboard.cli.app import main
from callboard.cli.cli_error import one_line
from callboard.cli.output import columns, say, to_json
from callboard.operation.logs import FORMAT, PrintableFormatter
from callboard.proxies.traffic.paths import read_node

EVIL = "a\x1b]0;owned\x07\x1b[2J\x9b1m\u202e\r\nb"


def is_harmless(text):
    return all(each.isprintable() or each in "\n\t" for each in text)


@given(st.text())
def test_printed_texts_rows_and_errors_contain_no_terminal_controls(text):
    rows = columns(("A", "B"), [(text, "b"), ("a", text)])

    assert is_harmless(rows)
    assert rows.count("\n") == 2
    assert one_line(text).isprintable()


@given(st.recursive(st.text(), lambda inner: st.dictionaries(st.text(), inner)))
def test_json_is_one_line_without_control_characters_and_decodes_to_the_same_value(value):
    text = to_json(value)

    assert text.isprintable()
    assert json.loads(text) == value


@pytest.mark.parametrize("text", ["two\nlines\tand", EVIL])
def test_printed_text_keeps_line_breaks_and_no_other_controls(text, capsys):
    say(text)
    say(text, err=True)

    out, err = capsys.readouterr()
    assert out == err
    assert is_harmless(out)


def test_all_commands_print_through_one_function():
    folder = Path(callboard.cli.__file__).parent
    own = {"output.py": 1, "pipeline.py": 1}  # a bar that is drawn in place
    found = {
        path.name: count
        for path in folder.rglob("*.py")
        if (count := path.read_text(encoding="utf-8").count("typer.echo("))
    }

    assert found == own


def test_classes_and_errors_of_a_hostile_node_are_shown_escaped(capsys):
    def answer(self, msg: str) -> str:
        raise ValueError(EVIL) if msg else None

    kind = type(EVIL, (Actor,), {"answer": handler(answer)})
    with Node("shop") as node:
        node.listen()
        node.register("evil", node.spawn(kind))
        assert main(["node", "ps", node.address]) == 0
        assert main(["node", "ps", node.address, "--json"]) == 0
        assert main(["actor", "ask", f"{node.address}/evil", "x"]) != 0

    out, err = capsys.readouterr()
    assert is_harmless(out)
    assert is_harmless(err)
    assert "\\x1b[2J" in out
    assert "\\x1b[2J" in err
    assert "\\u001b" in out


def test_names_of_nodes_are_printable():
    with pytest.raises(ValueError, match=r"'a\\x1b.* cannot be the name"):
        Node(EVIL)
    assert read_node(write_plain([EVIL]))[0] == ""
    assert read_node(write_plain(["shop"]))[0] == "shop"


def test_a_log_line_is_one_line_without_controls():
    record = logging.LogRecord("callboard", logging.ERROR, "f", 1, "said %s", (EVIL,), None)
    record.node = record.actor = "-"

    text = PrintableFormatter(FORMAT).format(record)

    assert is_harmless(text)
    assert text.splitlines()[1] == "    b"
