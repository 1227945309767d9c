"""Each pattern finds its example and leaves a plain sentence alone."""

from pathlib import PurePosixPath

import pytest

from scripts.structure.source import SourceFile
from scripts.structure.wording import (
    find_names,
    find_prose,
    is_vague,
    matches,
    package_of,
    wording_figures,
)


def file(path, text=""):
    return SourceFile(PurePosixPath(path), text)


def prose(text):
    """Return the names of the patterns that match in a module, in the order of its lines."""
    return [place.split(" ", 1)[1].split(":")[0] for place in find_prose(file("a.py", text))]


@pytest.mark.parametrize(
    ("name", "example", "plain"),
    [
        (
            "clause as noun",
            "A frame is held until what is missing has come.",
            "A frame is held until all earlier frames have arrived; decide what to do then.",
        ),
        (
            "clause as noun",
            "Whoever holds the lock may call.",
            "The thread that holds the lock may call.",
        ),
        (
            "clause as noun",
            "Names of entities, and who waits for them.",
            "Names of entities, and users who wait for them.",
        ),
        (
            "is no",
            "'a/#/b' is no topic filter",
            "'a/#/b' is not a topic filter; there is no room, and it is no longer sent",
        ),
        ("any more", "It is not a member any more.", "It is no longer a member."),
        ("behind", "It is queued behind the others.", "It is queued after the others."),
        ("goes on", "The next call goes on.", "The next call continues."),
        ("nobody", "Nobody reads the answer.", "No caller reads the answer."),
        ("told", "The sender is told the reason.", "The sender receives the reason."),
    ],
)
def test_a_pattern_finds_its_example_and_no_plain_sentence(name, example, plain):
    assert list(matches(example)) == [name]
    assert list(matches(plain)) == []


@pytest.mark.parametrize(
    ("name", "example", "plain"),
    [
        ("question as head", "How many nodes there are.", "Number of nodes."),
        ("question as head", "Why the link ended.", "The reason why the link ended."),
        ("vague verb as head", "Take a frame of a peer.", "Handle a frame of a peer."),
        ("vague verb as head", "Let a node leave.", "Remove a node. Let others join."),
    ],
)
def test_the_first_words_of_a_docstring_are_checked(name, example, plain):
    assert prose(f'"""{example}"""') == [name]
    assert prose(f'def f():\n    """{example}"""') == [name]
    assert prose(f'"""{plain}"""') == prose(f"# {example}") == []


def test_docstrings_comments_and_messages_are_prose():
    assert prose('class A:\n    """It is behind."""') == ["behind"]
    assert prose("x = 1  # it is behind") == ["behind"]
    assert prose('raise ValueError("it is behind")') == ["behind"]
    assert prose('msg = f"{name} is behind {other}"') == ["behind"]
    assert prose('log.warning("%s is behind", name)') == ["behind"]
    assert prose('assert text == "it is behind"\nbehind = 1') == []


def test_a_phrase_over_two_lines_is_found():
    assert prose("# the next call goes\n# on after that\nx = 1") == ["goes on"]
    assert prose("x = 1  # the next call goes\ny = 2\nz = 3  # on") == []


def test_names_of_variables_parameters_and_functions_are_checked():
    text = "def told(at, each_row):\n    _found = [what for what in at]\n    self.kept = 1\n"
    names = [place.split()[-1] for place in find_names(file("a.py", text))]
    assert sorted(names) == ["_found", "at", "told", "what"]


def test_nouns_are_not_vague():
    assert is_vague("found")
    assert is_vague("_what")
    assert is_vague("after_") is is_vague("offset") is is_vague("row_found") is False


def test_each_package_has_its_own_figures():
    source = [
        file("basp/link.py", "# behind\nat = 1"),
        file("callboard/mqtt/router/topics.py", "# it goes on behind"),
        file("callboard/node.py"),
    ]
    assert [package_of(each) for each in source] == ["basp", "mqtt", "callboard"]
    assert {figure.name: figure.value for figure in wording_figures(source)} == {
        "wording_basp": 1,
        "vague_names_basp": 1,
        "wording_mqtt": 2,
        "vague_names_mqtt": 0,
        "wording_callboard": 0,
        "vague_names_callboard": 0,
    }
