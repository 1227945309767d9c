import pytest

from callboard.demo.screen import HELP, KeyCommand, KeyParser


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
