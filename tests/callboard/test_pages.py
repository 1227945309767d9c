import urllib.error
import urllib.request
from http import HTTPStatus

import pytest

from callboard.pages import PLAIN, Page, PageServer


def fails():
    msg = "ended meanwhile"
    raise RuntimeError(msg)


@pytest.fixture
def server():
    pages = {"/a": lambda: Page(HTTPStatus.OK, PLAIN, "aé\n"), "/fails": fails}
    server = PageServer(pages)
    yield server
    server.close()


def ask(server, path, method="GET", host="localhost"):
    url = f"http://127.0.0.1:{server.port}{path}"
    request = urllib.request.Request(url, headers={"Host": host}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.read().decode(), answer.headers["Content-Length"]
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode(), error.headers["Content-Length"]


def test_a_page_is_made_when_asked_for(server):
    assert ask(server, "/a?b=c") == (200, "aé\n", "4")


def test_head_gives_the_length_only(server):
    assert ask(server, "/a", "HEAD") == (200, "", "4")


def test_other_paths_are_not_found_and_say_what_is(server):
    assert ask(server, "/b")[:2] == (404, "no such page; the pages are /a, /fails\n")


def test_a_page_that_cannot_be_made_is_logged_and_others_are_served(server, caplog):
    assert ask(server, "/fails")[:2] == (500, "see the log\n")
    assert "the page /fails could not be created" in caplog.text
    assert ask(server, "/a")[0] == 200


@pytest.mark.parametrize(("address", "probed"), [("0.0.0.0", 200), ("127.0.0.1", 403)])
def test_probes_may_ask_a_public_port_by_any_name_and_for_their_pages_only(address, probed):
    pages = dict.fromkeys(("/livez", "/other"), lambda: Page(HTTPStatus.OK, PLAIN, "here"))
    server = PageServer(pages, address)

    statuses = [ask(server, path, host="shop.example")[0] for path in ("/livez", "/other")]
    server.close()

    assert statuses == [probed, 403]


def test_closing_twice_is_fine_and_frees_the_port(server):
    server.close()
    server.close()
    with pytest.raises(urllib.error.URLError):
        ask(server, "/a")
