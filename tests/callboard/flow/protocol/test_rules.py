"""Rules over what a BOT says, and file names made of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.flow.errors import InvalidRule
from callboard.flow.protocol.rules import Rule, fill_pattern

ABOUT = {"stream": "raw", "credit": 7, "urgent": True, "tags": ["a", "b"], "rate": 1.5}


@pytest.mark.parametrize(
    "text",
    [
        '(= stream "raw")',
        '(== stream "raw")',
        '(and (= stream "raw") (> credit 5) (<= rate 1.5))',
        '(or (= stream "x") (>= credit 7))',
        "(not missing)",
        "(= missing null)",
        '(!= stream "cooked")',
        '(in stream "cooked" "raw")',
        '(in "a" tags)',
        "urgent",
        "(= urgent true)",
        "(and)",
        "true",
        r'(!= stream "a \" (quote")',
    ],
)
def test_a_rule_that_holds(text):
    assert Rule(text).holds(ABOUT)


@pytest.mark.parametrize(
    "text",
    [
        "(or)",
        "(= urgent 1)",
        "(< stream 3)",
        "(> missing 3)",
        '(in stream "x" "y")',
        "(not urgent)",
        "false",
        "missing",
    ],
)
def test_a_rule_that_does_not_hold(text):
    assert not Rule(text).holds(ABOUT)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "too early"),
        ("(", "too early"),
        ("(= a", "too early"),
        ("(= a 1))", "text follows the end"),
        (")", "missing before"),
        ("(= a 1 2)", "3 terms"),
        ("(not)", "0 terms"),
        ("(eval a b)", "not one of"),
        ("()", "not one of|too early"),
        ('(= a "x)', "quote"),
        ("(not " * 40 + "a" + ")" * 40, "brackets"),
        ("x" * 5000, "characters"),
        (r'(= a "\q")', "JSON"),
    ],
)
def test_a_rule_that_cannot_be_read_says_where(text, why):
    with pytest.raises(InvalidRule, match=why):
        Rule(text)


@given(st.text('()"\\= andornotin<>!x1 ', max_size=40))
def test_any_text_is_a_rule_or_an_invalid_one(text):
    try:
        rule = Rule(text)
    except InvalidRule:
        return
    rule.holds({"x": 1, "an": "d"})


def test_a_pattern_takes_plain_names(tmp_path):
    assert fill_pattern("{stream}/{credit}.zio", ABOUT, tmp_path) == tmp_path / "raw" / "7.zio"


@pytest.mark.parametrize(
    ("pattern", "value"),
    [
        ("{name}", "../x"),
        ("{name}", "/etc/passwd"),
        ("a/{name}", "../../x"),
        ("{name}", "."),
        ("{name}", ""),
        ("{name}", "a\0b"),
        ("{name}", "a\\b"),
        ("{name}", None),
        ("{name}", ["x"]),
        ("{name}", True),
        ("{other}", "x"),
        ("{name.upper}", "x"),
        ("{name[0]}", "x"),
        ("{name!r}", "x"),
        ("{0}", "x"),
    ],
)
def test_a_name_that_would_leave_the_folder_is_refused(tmp_path, pattern, value):
    with pytest.raises(InvalidRule):
        fill_pattern(pattern, {"name": value}, tmp_path)


def test_a_link_out_of_the_folder_is_refused(tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    (root / "out").symlink_to(tmp_path)

    with pytest.raises(InvalidRule, match="leads out"):
        fill_pattern("out/{name}", {"name": "x"}, root)
