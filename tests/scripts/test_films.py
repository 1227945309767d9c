"""Recordings of terminals, and the pictures that are made from them."""

import sys
from xml.etree import ElementTree

import pytest

from scripts.films.all import FILMS, films, place
from scripts.films.cast import Cast, thinned
from scripts.films.film import film, still
from scripts.films.record import ProgramFailedError, record
from scripts.films.terminal import Run, Terminal

SVG = "{http://www.w3.org/2000/svg}"


def screen(*written, columns=10, rows=3):
    terminal = Terminal(columns, rows)
    for text in written:
        terminal.feed(text)
    return terminal.shown()


def cast(*events, columns=10, rows=3):
    return Cast(columns, rows, "a test", events)


def last(recording):
    *_, (_, rows) = recording.frames()
    return rows


def test_what_is_written_stands_at_its_place_with_its_look():
    shown = screen("a\x1b[1;31mb\x1b[0m\r\n\x1b[3;5Hc")

    assert shown == [(Run(0, "a", ""), Run(1, "b", "b red")), (), (Run(0, "    c", ""),)]


def test_a_long_line_goes_on_below_and_a_full_screen_moves_up():
    assert screen("0123456789ab\r\nc\r\nd") == [
        (Run(0, "ab", ""),),
        (Run(0, "c", ""),),
        (Run(0, "d", ""),),
    ]


def test_the_alternate_screen_gives_back_what_was_there():
    shown = screen("before\r\n", "\x1b[?1049h\x1b[Hinside", "\x1b[?1049lafter")

    assert shown == [(Run(0, "before", ""),), (Run(0, "after", ""),), ()]


def test_a_recording_is_read_as_it_was_written(tmp_path):
    recording = cast((0.0, "a\x1b[32m→"), (1.5, "\r\nb"))

    recording.write(tmp_path / "a.cast")

    assert Cast.read(tmp_path / "a.cast") == recording


def test_a_thinned_recording_ends_with_the_same_picture_and_without_secrets():
    events = [
        (number / 100, f"\x1b[H\x1b[36m{number}\x1b[0m token=ab-c") for number in range(200)
    ]

    few = thinned(cast(*events, columns=40), 0.5, 2.0)

    assert len(few.events) == 4
    assert last(few)[0][0] == Run(0, "199", "cyan")
    assert "ab-c" not in "".join(text for _, text in few.events)


def test_a_long_rest_is_shortened():
    few = thinned(cast((0.0, "a"), (60.0, "b"), (61.0, "c")), 0.5, 2.0)

    assert [seconds for seconds, _ in few.events] == [0.0, 2.0, 3.0]


def test_what_is_before_the_begin_of_the_story_is_left_out():
    events = ((0.0, "$ go"), (5.0, "\x1b[H\x1b[Kwait"), (9.0, "\x1b[H\x1b[Kready"))

    few = thinned(cast(*events), 0.5, 2.0, after="ready")

    assert [rows[0][0].text for _, rows in few.frames()] == ["$ go", "ready"]


def test_a_program_is_recorded_to_its_end(tmp_path):
    command = [sys.executable, "-c", "import os; print(os.getcwd(), os.get_terminal_size())"]

    recording = record(command, "where", 80, 5, tmp_path)

    text = "".join(run.text for row in last(recording) for run in row)
    assert text.startswith("$ where")
    assert str(tmp_path) in text
    assert "columns=80, lines=5" in text


def test_a_program_that_fails_is_not_recorded(tmp_path):
    with pytest.raises(ProgramFailedError, match="fail ended with 3"):
        record([sys.executable, "-c", "raise SystemExit(3)"], "fail", 80, 5, tmp_path)


def test_each_picture_of_a_film_is_one_step():
    root = ElementTree.fromstring(film("one", cast((0.0, "a  b"), (1.0, "\r\nc")), 3.0))

    style = root.findtext(f"{SVG}style")
    pictures = root.findall(f"{SVG}svg/{SVG}g/{SVG}g")
    assert [len(picture) for picture in pictures] == [1, 2]
    assert "0.00%{transform:translateX(0px)}25.00%{transform:translateX(-106px)}" in style
    assert "prefers-reduced-motion" in style
    assert [each.text for each in root.iter(f"{SVG}text")] == ["a test", "a", "b", "c"]


def test_a_still_is_the_last_picture_without_empty_lines():
    root = ElementTree.fromstring(still(cast((0.0, "a"), (1.0, "\r\nb<"), rows=9)))

    assert [each.text for each in root.iter(f"{SVG}text")] == ["a test", "a", "b<"]
    assert root.attrib["height"] == str(30 + 2 * 16 + 14)


@pytest.mark.parametrize("name", FILMS)
def test_pictures_of_films_are_small_enough_for_a_page(name):
    content = films()[place(name).with_suffix(".svg")]

    assert len(content.encode()) < 400_000
    assert "token=" not in content.replace("token=…", "")
