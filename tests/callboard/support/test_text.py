import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.support.text import (
    TEXT_LIMIT,
    describe,
    error_text,
    logged,
    printable,
    safe_repr,
    sendable,
    trace_of,
)


class Speechless(Exception):
    """An error of a user whose texts raise."""

    def __init__(self, raised: BaseException) -> None:
        self.raised = raised

    def __str__(self) -> str:
        raise self.raised

    __repr__ = __str__


RAISED = [
    ValueError("no"),
    SystemExit(3),
    KeyboardInterrupt(),
    GeneratorExit(),
    RecursionError(),
]


@pytest.mark.parametrize("raised", RAISED, ids=lambda raised: type(raised).__name__)
def test_a_text_that_raises_is_replaced(raised):
    error = Speechless(raised)

    assert error_text(error) == "<its text could not be made>"
    assert describe(error) == "Speechless: <its text could not be made>"
    assert safe_repr(error) == "<a Speechless without a repr>"
    assert "Speechless" in trace_of(error)


def test_texts_are_bounded():
    error = ValueError("x" * 10_000_000)

    assert len(error_text(error)) == TEXT_LIMIT
    assert len(trace_of(error)) <= TEXT_LIMIT
    assert len(safe_repr("y" * 10_000_000)) == 500
    assert describe(ValueError()) == "ValueError"
    assert describe(ValueError("why")) == "ValueError: why"


def test_a_trace_whose_notes_raise_is_replaced():
    class Noted(Exception):
        @property
        def __notes__(self):
            raise SystemExit

    assert trace_of(Noted("why")) == f"{Noted.__qualname__}: why"


@given(st.text())
def test_a_printable_text_is_one_line_without_controls(text):
    made = printable(text)

    assert made.isprintable()
    assert made == text or not text.isprintable()


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("Käse 奶酪", "Käse 奶酪"),
        ("\x1b]0;owned\x07", "\\x1b]0;owned\\x07"),
        ("a\u202eb\u2066", "a\\u202eb\\u2066"),
        ("a\nb\rc\x9b", "a\\nb\\rc\\x9b"),
        ("\ud800\U000e0041", "\\ud800\\U000e0041"),
    ],
)
def test_characters_that_control_a_terminal_are_escaped(text, made):
    assert printable(text) == made
    assert printable("a\nb\x1b", allowed="\n") == "a\nb\\x1b"


@given(st.text(st.characters(categories=["Cs", "L"])))
def test_texts_of_errors_and_values_can_be_sent(text):
    error = ValueError(text)

    for made in (
        error_text(error),
        describe(error),
        trace_of(error),
        safe_repr(text),
        sendable(text),
    ):
        made.encode()
    assert sendable("naïve") == "naïve"
    assert sendable("caf\udce9") == r"caf\udce9"


@pytest.mark.parametrize("behind", [False, True])
def test_an_error_with_surrogates_reaches_a_log_file(tmp_path, behind):
    error = ValueError("caf\udce9")
    if behind:
        outer = KeyError("outer")
        outer.__cause__, error = error, outer
    log = logging.getLogger(f"callboard.test.{tmp_path.name}")
    handler = logging.FileHandler(tmp_path / "log", encoding="utf-8")
    handler.handleError = pytest.fail
    log.addHandler(handler)

    logged(log, "%s failed", "it", error=error)
    handler.close()

    text = (tmp_path / "log").read_text()
    assert text.startswith("it failed\n")
    assert r"ValueError: caf\udce9" in text
