"""The syntax of broker.conf."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.broker.conf import DEPTH_LIMIT, parse_conf
from callboard.model.errors import InvalidOption

TEXT = """
# what our site wants
broker {
  ttl = 16, disable-ssl = true   # both on one line
  metrics { port=4040
    export.prefixes = ["broker_", "callboard_",]
    "endpoint-name" = "a \\"b\\" \\\\ # no comment"
  }
  metrics = { address = "::1" }
}
broker.ttl = 5
"""


def values(text):
    return {key: entry.value for key, entry in parse_conf(text).items()}


def test_groups_and_dots_make_keys_and_the_last_value_counts():
    assert values(TEXT) == {
        "broker.ttl": "5",
        "broker.disable-ssl": "true",
        "broker.metrics.port": "4040",
        "broker.metrics.export.prefixes": ("broker_", "callboard_"),
        "broker.metrics.endpoint-name": 'a "b" \\ # no comment',
        "broker.metrics.address": "::1",
    }


def test_each_entry_knows_its_line():
    assert [entry.line for entry in parse_conf("a=1\n\n# x\nb { c = 2\n}").values()] == [1, 4]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a", "line 1: 'the end' instead of '=' or '{' after 'a'"),
        ("a\n= ", "line 2: 'the end' instead of a value"),
        ("a =\n}", "line 2: '}' instead of a value"),
        ("}", "line 1: '}' instead of a key"),
        ("= 1", "line 1: '=' instead of a key"),
        ("a {\nb = 1", "line 2: 'the end' instead of the '}' of 'a'"),
        ("a = [1\nb = 2]", "line 2: '=' instead of ']'"),
        ('\na = "open', "line 2: '\"' instead of a text that ends on its line"),
        ("a { " * (DEPTH_LIMIT + 1), f"at most {DEPTH_LIMIT} groups"),
    ],
)
def test_what_is_no_such_file_is_refused_with_its_line(text, told):
    with pytest.raises(InvalidOption) as caught:
        parse_conf(text)

    assert told in str(caught.value)


@given(st.text(alphabet='ab.{}[]=,#" \n\\1', max_size=60))
def test_any_text_is_read_or_refused(text):
    try:
        found = parse_conf(text)
    except InvalidOption:
        return

    assert all(isinstance(entry.value, str | tuple) for entry in found.values())


@given(st.text(max_size=40).filter(lambda text: "\n" not in text))
def test_any_text_of_one_line_can_be_quoted(text):
    quoted = text.replace("\\", "\\\\").replace('"', '\\"')

    assert values(f'key = "{quoted}"') == {"key": text}
