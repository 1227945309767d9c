import threading
import urllib.error
import urllib.request

import pytest

from callboard import Actor, Node, handler
from callboard.operation import HealthServer
from callboard.operation.health import is_live
from tests.proxies.cast import Echo, connect, eventually


class Slow(Actor):
    @handler
    async def seconds(self, msg: float) -> float:
        await self.sleep(msg)
        return msg


def get(server, path):
    try:
        with urllib.request.urlopen(f"{server.url}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode(), answer.headers["Content-Type"]
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode(), error.headers["Content-Type"]


@pytest.fixture
def node():
    with Node("shop") as node:
        yield node


@pytest.fixture
def server(node):
    with HealthServer(node) as server:
        yield server


def test_a_node_is_ready_when_its_set_up_is_over(server):
    assert get(server, "/livez")[:2] == (200, "live\n")
    assert get(server, "/readyz")[:2] == (503, "starting\n")

    server.set_ready()

    assert get(server, "/readyz")[:2] == (200, "ready\n")


def test_a_node_that_joins_is_ready_once_it_has_reached_another(node):
    with Node() as other, HealthServer(node, joins=True) as server:
        server.set_ready()
        assert get(server, "/readyz")[:2] == (503, "joining: no other node is reached yet\n")

        connect(node, other)
        eventually(lambda: get(server, "/readyz")[0] == 200)

    eventually(lambda: not node.nodes())


def test_a_node_that_drains_is_live_and_not_ready(node, server):
    server.set_ready()
    node.spawn(Slow).ask(1.0)
    drain = threading.Thread(target=node.drain)
    drain.start()

    eventually(lambda: get(server, "/readyz")[:2] == (503, "draining\n"))
    assert get(server, "/livez")[0] == 200
    drain.join(20)
    assert get(server, "/readyz")[:2] == (503, "closed\n")
    assert get(server, "/livez")[0] == 503


def test_a_runner_that_takes_no_turn_is_not_live(node):
    release = threading.Event()
    node.spawn(Echo)
    node.runtime.runner.post(release.wait, 20)

    assert not is_live(node, 0.05)
    release.set()
    assert is_live(node, 20)


def test_metrics_are_served_as_text(node, server):
    echo = node.spawn(Echo)
    echo.ask("x").result(5)

    status, text, content_type = get(server, "/metrics?name=ignored")

    assert (status, content_type) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert "callboard_actors 1\n" in text


def test_other_paths_are_not_found_and_say_what_is(server):
    status, text, _ = get(server, "/nothing")

    assert status == 404
    assert "/livez, /readyz, /metrics" in text
