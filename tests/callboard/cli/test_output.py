from dataclasses import dataclass

import pytest

from callboard.cli.output import from_text, to_json


@dataclass(frozen=True)
class Point:
    x: int
    tags: tuple[str, ...] = ()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5", 5),
        ("1.5", 1.5),
        ("true", True),
        ("null", None),
        ('{"a": [1]}', {"a": [1]}),
        ('"5"', "5"),
        ("hello", "hello"),
        ("{broken", "{broken"),
        ("", ""),
    ],
)
def test_an_argument_that_is_not_json_is_text(text, value):
    assert from_text(text) == value


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"a": (1, 2)}, '{"a": [1, 2]}'),
        (Point(1, ("ä",)), '{"x": 1, "tags": ["ä"]}'),
        ({1: b"\x01\x02"}, '{"1": "0102"}'),
        (1j, '"1j"'),
        (None, "null"),
    ],
)
def test_values_become_the_nearest_that_json_has(value, text):
    assert to_json(value) == text
