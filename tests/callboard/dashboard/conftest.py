"""A cluster of three nodes with a dashboard: actors, topics, a store, and unusual names."""

import asyncio
import json
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass

import pytest

pytest.importorskip("starlette", reason="needs pip install 'callboard[dashboard]'")
pytest.importorskip("uvicorn", reason="needs pip install 'callboard[dashboard]'")

import callboard.broker as broker
from callboard import Actor, Node, handler, message
from callboard.dashboard import actions, collector
from tests.polling import eventually

#: Names as an attacker, or another language, would write them.
NASTY = [
    "<script>document.title='owned'</script>",
    "\"><img src=x onerror=document.title='owned'>",
    "quotes ' \" ` ${x}",
    "\u202egnirts desrever\u202c",
    "control \x01\x1b[31m\x7f",
    "__proto__",
    "constructor",
    "=1+1",
    "y" * 10_000,
]


@message("dashboardtest.Add")
@dataclass(frozen=True)
class Add:
    by: int


class Counter(Actor):
    def __init__(self) -> None:
        self.total = 0

    @handler
    def add(self, message: Add) -> int:
        self.total += message.by
        return self.total

    @handler
    def plain(self, by: int) -> int:
        return self.add(Add(by))


class Failing(Actor):
    @handler
    def text(self, message: str) -> None:
        raise ValueError(message)

    @handler
    async def number(self, message: int) -> None:
        await asyncio.sleep(0)
        raise ValueError(message)


class Idle(Actor):
    @handler
    def text(self, message: str) -> None: ...


class Client:
    """A program that uses the API."""

    def __init__(self, link):
        self.base, _, self.token = link.partition("?token=")

    def ask(self, path, method="GET", body=None, **headers):
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        given = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        given = {name: value for name, value in (given | named).items() if value}
        data = None if body is None else json.dumps(body).encode()
        url = f"{self.base}{path}"
        request = urllib.request.Request(url, data, given, method=method)
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return answer.status, answer.read(), answer.headers
        except urllib.error.HTTPError as error:
            return error.code, error.read(), error.headers

    def read(self, view, **parameters):
        query = urllib.parse.urlencode(parameters)
        status, text, _ = self.ask(f"api/v1/{view}?{query}")
        assert status == 200, text
        return json.loads(text)

    def act(self, action, **body):
        status, text, _ = self.ask(f"api/v1/actions/{action}", "POST", body)
        return status, json.loads(text)


@pytest.fixture(scope="module", autouse=True)
def patience():
    """Wait long for nodes: beside other work they answer late, and would not be shown."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(collector, "PATIENCE", 60.0)
        patch.setattr(collector, "SILENT", 600.0)
        patch.setattr(actions, "END_LIMIT", 60.0)
        patch.setattr(actions, "ANSWER_LIMIT", 60.0)
        yield


class Cluster:
    def __init__(self, *, actions):
        self.hub = Node("hub", dashboard=True, actions=actions)
        self.east, self.west = Node("east"), Node("west")
        self.hub.listen("127.0.0.1", 0)
        for node in (self.east, self.west):
            node.connect(self.hub.address)
        eventually(lambda: len(self.hub.nodes()) == 2)
        self.client = Client(self.hub.dashboard_url)

    def await_answers(self):
        """Wait until each node has answered the page, which shows it as up then."""
        eventually(lambda: {row["state"] for row in self.rows("nodes")} == {"up"})

    def rows(self, view):
        return self.client.read(view)["rows"]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for node in (self.east, self.west, self.hub):
            node.close()


@pytest.fixture(scope="module")
def cluster():
    with Cluster(actions=True) as found:
        found.counter = found.west.spawn(Counter)
        found.west.register("counter", found.counter)
        found.idle = [found.east.spawn(Idle) for _ in range(250)]
        for name in NASTY:
            found.east.spawn(type(name, (Idle,), {}))
        with (
            broker.Endpoint(node=found.hub) as here,
            broker.Endpoint(node=found.east) as there,
            here.make_subscriber("/cpu"),
            here.attach_master("things") as master,
        ):
            found.master, found.there = master, there
            for name in NASTY:
                master.put(name[:2_000], name[:2_000])
            master.put("leader", "me", 300)
            found.await_answers()
            yield found
