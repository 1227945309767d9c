import socket
import urllib.request

import pytest

from callboard import Node
from callboard.demo.page import DemoPage, command_of
from callboard.demo.screen import KeyCommand
from tests.polling import eventually


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


def test_the_page_finds_a_node_that_is_late():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with DemoPage(f"basp://127.0.0.1:{port}", lambda _: None) as page:
        url = page.link.replace("/?token=", "/api/v1/nodes?token=").partition("?")[0]
        ask = urllib.request.Request(url)
        ask.add_header("Authorization", f"Bearer {page.link.partition('token=')[2]}")
        urllib.request.urlopen(ask, timeout=30).close()  # it looks for the node by then
        with Node("A") as late:
            late.listen("127.0.0.1", port)
            eventually(
                lambda: b'"A"' in urllib.request.urlopen(ask, timeout=30).read(), interval=0.1
            )
