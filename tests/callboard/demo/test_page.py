import pytest

from callboard.demo.page import DemoPage, command_of
from callboard.demo.screen import KeyCommand


@pytest.mark.parametrize(
    ("verb", "target", "command"),
    [
        ("kill", "C", KeyCommand("kill", "C")),
        ("freeze", "A", KeyCommand("freeze", "A")),
        ("cut", "B-C", KeyCommand("cut", "B")),
        ("cut", "C-B", KeyCommand("cut", "B")),
        ("cut", "A-D", None),
        ("cut", "A", None),
        ("kill", "E", None),
        ("kill", "", None),
    ],
)
def test_a_click_is_what_a_key_would_be(verb, target, command):
    assert command_of(verb, target) == command


@pytest.mark.skipif(not DemoPage.is_possible(), reason="needs callboard[dashboard]")
def test_the_link_is_there_at_once_and_goes_with_the_demo():
    with DemoPage("basp://127.0.0.1:9", lambda _: None) as page:
        assert page.link.startswith("http://127.0.0.1:")
        assert len(page.link.partition("?token=")[2]) > 30
