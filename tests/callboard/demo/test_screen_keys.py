import io

import pytest
from rich.console import Group
from rich.panel import Panel
from rich.text import Text

from callboard.demo.scene import SceneEvent
from callboard.demo.screen import HELP, KeyCommand, KeyParser, PlainScreen
from callboard.demo.view import LiveScreen


@pytest.mark.parametrize(
    ("keys", "command"),
    [
        ("q", KeyCommand("quit")),
        ("kc", KeyCommand("kill", "C")),
        ("KC", KeyCommand("kill", "C")),
        ("pa", KeyCommand("freeze", "A")),
        ("cb", KeyCommand("cut", "B")),
        ("kxkd", KeyCommand("kill", "D")),  # x takes the first k back
    ],
)
def test_keys_become_commands(keys, command):
    parser = KeyParser()

    found = [parser.press(key) for key in keys]

    assert found[-1] == command
    assert set(found[:-1]) <= {None}


@pytest.mark.parametrize("keys", ["x", "kx", "kq", "cd", "c\x1b", "a"])
def test_other_keys_do_nothing(keys):
    parser = KeyParser()

    assert [parser.press(key) for key in keys] == [None] * len(keys)


def test_the_prompt_says_which_keys_come_next():
    parser = KeyParser()
    assert parser.prompt == HELP

    parser.press("k")
    assert parser.prompt == "kill which node?  a · b · c · d"
    parser.press("x")
    assert parser.prompt == HELP

    parser.press("c")
    assert parser.prompt == "cut which link?  a: A─B · b: B─C · c: C─D"


EVIL = "a\x1b]0;owned\x07\x1b[2J\x9b1m\u202eb"


def test_no_screen_writes_what_a_terminal_obeys():
    out = io.StringIO()
    PlainScreen(out).event(SceneEvent(0, None, EVIL, "bad"), 1.0)
    live = LiveScreen(None)
    live._console.file = written = io.StringIO()
    live._console.print(Group(Panel(Text(EVIL), title=EVIL), Text.assemble((EVIL, "red"))))
    live.event(SceneEvent(0, None, EVIL, "bad"), 1.0)
    live.close()

    for text in (out.getvalue(), written.getvalue()):
        assert "\\x1b]0;owned" in text
        assert not {"\x07", "\x9b", "\u202e"} & {*text}
        assert "\x1b]" not in text
        assert "\x1b[2J" not in text
