"""Ideas that have one owner: pauses between attempts, bounded queues, dialing, WebSocket.

Each test looks in all sources for a new sibling of such an owner. A place that has a reason to
be one is listed here; the reason stands in the source, and shortly beside the name.
"""

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("actors", "basp", "proxies", "callboard")

#: Loops that sleep, retry with a pause of their own, or let a pause grow.
PAUSES = {
    "actors/runner/spinning.py:AdaptivePoll.select": "polls, not seconds",
    "actors/runner/watcher.py:Watcher._run": "a tick of a thread",
    "callboard/cli/mqtt.py:trace": "the refresh of a display",
    "callboard/cli/node.py:events": "the refresh of a display",
    "callboard/cli/options.py:LookOptions.updates": "the refresh of a display",
    "callboard/convention/membership.py:Seeker.seek": "looks again in any case",
    "callboard/dashboard/port.py:DashboardPort._accept": "accepts again, on asyncio's loop",
    "callboard/entity/machine/job_queue.py:JobQueue.refuse": "also the time to forget",
    "callboard/entity/machine/ownership_machine.py:OwnershipMachine._busy": "polls",
    "callboard/mqtt/service/router_actor.py:RouterActor._write": "waits on its runner's clock",
    "callboard/pipeline/bridge.py:Bridge._follow": "follows a log; a pause after an error",
    "callboard/backoff.py:retrying": "the owner",
    "proxies/broker.py:Broker._housekeep": "a tick that slows down while nothing happens",
}

#: Classes with a deque, a limit and drops.
QUEUES = {
    "actors/mailbox.py:BoundedMailbox": "a drop fails an ask; its bounds are a BackPressure",
    "callboard/bounded_queue.py:BoundedQueue": "the owner",
    "callboard/gateway/inbox.py:Inbox": "a drop goes to on_lost; its bounds are a BackPressure",
    "callboard/mqtt/router/delivery.py:Delivery": "quotas of MQTT over the readers of a topic",
    "callboard/mqtt/service/bridge_relay.py:BridgeRelay": "drops by size; waits for a window",
    "callboard/topics/machine/catch_up.py:CatchUp": "a history; on the path of each publish",
    "callboard/topics/message_queue.py:MessageQueue": "on the path of each received message",
}

#: Places that open connections.
DIALS = {
    "callboard/commitlog/export/postgresql.py:PostgresqlTarget.open": "psycopg",
    "callboard/demo/mqtt_client.py:main": "paho",
    "callboard/flow/zeromq.py:_Loop.join": "ZeroMQ",
    "callboard/gateway/modules/mqtt.py:MqttModule.start": "paho",
    "callboard/lease/postgresql.py:Connected._connect": "psycopg",
    "callboard/mqtt/service/bridge.py:BridgeConnection._session": "asyncio; it has no machine",
    "callboard/pipeline/process/worker_python.py:_request_fork": "a parent, without callboard",
    "callboard/zeek/doors/zeromq_socket.py:LoopSocket._reconnect": "ZeroMQ",
    "callboard/zeek/doors/zeromq_socket.py:ZeroMqSockets.connect": "ZeroMQ",
    "proxies/link/dialer.py:Dialer._start": "the owner for links of nodes",
    "proxies/link/foreign.py:ForeignWires._attempt": "the owner for other protocols",
    "proxies/link/network.py:MachineNetwork.connect": "the sockets of both",
    "proxies/link/network.py:_answers": "tries whether a Unix socket is in use",
}

#: Files that import the WebSocket protocol; no other one implements it.
WEB_SOCKETS = {
    "callboard/mqtt/port/websocket.py",
    "callboard/zeek/text_frames.py",
    "callboard/zeek/web_socket.py",
}

#: Twins by hand although one calls the other; `twin` and `blocking_twin` make these.
TWINS = {
    "callboard/closing.py:Closing.aclose": "subclasses override one or both",
    "callboard/commitlog/log.py:CommitLog.aflush": "the log imports nothing of actors",
    "callboard/node.py:Node.host": "passes keywords on to a constructor, whose may be `self`",
    "callboard/node.py:Node.queue": "without a state it does not wait, in handlers either",
    "callboard/node.py:Node.singleton": "has a type parameter",
    "proxies/workers/pool.py:WorkerPool.spawn": "has a type parameter",
    "proxies/workers/pool.py:WorkerPool.spawn_each": "has a type parameter",
}

_DIALING = {
    "create_connection",
    "create_unix_connection",
    "open_connection",
    "open_unix_connection",
    "sock_connect",
    "connect_ex",
    "Attempt",
}
_CLIENT = re.compile(r"(sock|socket|client|psycopg|connection)$")
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_SCOPES = (ast.ClassDef, *_FUNCTIONS)
_PAUSE_NAME = re.compile(r"pause|delay|away|\.period\b|wait")
_DOUBLED = re.compile(r"\b2(\.0)? \* [a-z]|[a-z] \* 2\b")
_LIMIT_NAME = re.compile(r"limit|most\b|max_|keep|room|bound|high", re.IGNORECASE)
_DROP_NAME = re.compile(r"drop_(oldest|newest|for)|overflow")

#: For programs in strings: tests with the call itself are counted by `scripts.structure`.
SLEEP = "sleep"

Parents = tuple[ast.AST, ...]


def _with_parents(tree: ast.AST, parents: Parents = ()) -> Iterator[tuple[ast.AST, Parents]]:
    for node in ast.iter_child_nodes(tree):
        yield node, (*parents, tree)
        yield from _with_parents(node, (*parents, tree))


def _name(parents: Parents) -> str:
    return ".".join(node.name for node in parents if isinstance(node, _SCOPES))


def _in_function(parents: Parents) -> Parents:
    """Return the parents of a node from the innermost function on."""
    for index in range(len(parents) - 1, -1, -1):
        if isinstance(parents[index], (*_FUNCTIONS, ast.Lambda)):
            return parents[index:]
    return parents


def _called(node: ast.Call) -> str:
    if isinstance(node.func, ast.Attribute):
        return node.func.attr
    return node.func.id if isinstance(node.func, ast.Name) else ""


def pauses_in(tree: ast.AST) -> Iterator[str]:
    """Yield where a loop sleeps, retries with a pause of its own, or doubles a pause."""
    for node, parents in _with_parents(tree):
        name = _called(node) if isinstance(node, ast.Call) else ""
        if name not in ("sleep", "wait", "wait_for", "min"):
            continue
        around, text = _in_function(parents), ast.unparse(node)
        is_loop = any(isinstance(parent, _LOOPS) for parent in around)
        is_retry = is_loop and any(isinstance(parent, ast.ExceptHandler) for parent in around)
        if name == "min":
            is_found = _DOUBLED.search(text) and _PAUSE_NAME.search(text)
        elif name == "sleep":
            blocks = is_loop and text.startswith(("time.", "sleep"))
            is_found = (is_retry or blocks) and "next_pause" not in text
        else:
            is_found = is_retry and not text.endswith("()")
        if is_found:
            yield _name(parents)


def queues_in(tree: ast.AST) -> Iterator[str]:
    """Yield classes that have a deque without `maxlen`, compare with a limit, and drop."""
    for node, parents in _with_parents(tree):
        if isinstance(node, ast.ClassDef):
            parts = list(ast.walk(node))
            if _has_deque(node, parts) and any(map(_drops, parts)) and any(map(_limits, parts)):
                yield _name((*parents, node))


def _has_deque(node: ast.ClassDef, parts: list[ast.AST]) -> bool:
    values = [part.value for part in parts if isinstance(part, ast.Assign | ast.AnnAssign)]
    texts = [ast.unparse(value) for value in values if value is not None]
    has_base = any("deque" in ast.unparse(base) for base in node.bases)
    return has_base or any(
        re.search(r"\bdeque\b", text) and "maxlen" not in text for text in texts
    )


def _limits(part: ast.AST) -> bool:
    orders = (ast.Gt, ast.GtE, ast.Lt, ast.LtE)
    is_order = isinstance(part, ast.Compare) and isinstance(part.ops[0], orders)
    return is_order and _LIMIT_NAME.search(ast.unparse(part)) is not None


def _drops(part: ast.AST) -> bool:
    if isinstance(part, ast.FunctionDef):
        return _DROP_NAME.search(part.name) is not None
    return isinstance(part, ast.Attribute) and part.attr == "dropped"


def dials_in(tree: ast.AST) -> Iterator[str]:
    """Yield where a connection is opened."""
    for node, parents in _with_parents(tree):
        name = _called(node) if isinstance(node, ast.Call) else ""
        if name in _DIALING or (name == "connect" and _CLIENT.search(_owner(node))):
            yield _name(parents)


def _owner(node: ast.AST) -> str:
    is_method = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    return ast.unparse(node.func.value) if is_method else ""


def twins_in(tree: ast.AST) -> Iterator[str]:
    """Yield methods that do nothing but call their awaitable or blocking twin."""
    for node, parents in _with_parents(tree):
        if isinstance(node, _FUNCTIONS):
            is_blocking = isinstance(node, ast.FunctionDef)
            other = f"a{node.name}" if is_blocking else node.name[1:]
            call = rf"(_wait|on_a_thread|to_thread)\(self\.{other}\b"
            if re.search(call, ast.unparse(node.body[-1])):
                yield _name((*parents, node))


def _sources(*words: str) -> Iterator[tuple[str, str]]:
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            is_copy = folder == "callboard" and name.split("/")[1] in FOLDERS
            is_simulated = name.startswith("callboard/simulation/")
            if is_copy or is_simulated:
                continue
            text = path.read_text(encoding="utf-8")
            if any(word in text for word in words):
                yield name, text


def _places(find: Callable[[ast.AST], Iterator[str]], *words: str) -> set[str]:
    return {
        f"{name}:{place}" for name, text in _sources(*words) for place in find(ast.parse(text))
    }


def test_no_loop_has_pauses_of_its_own():
    """A new one? Use `callboard.backoff`, or a `Backoff` for timers and coroutines."""
    assert _places(pauses_in, "sleep", ".wait(", "wait_for(", "min(2 ", "* 2") == set(PAUSES)


def test_no_class_is_a_bounded_queue_of_its_own():
    """A new one? Use `BoundedQueue`, or a `BackPressure` if senders wait for room."""
    assert _places(queues_in, "deque(") == set(QUEUES)


def test_nothing_else_opens_connections():
    """A new one? Use `node.connect`, or a dial of `callboard.kernel.wire`."""
    assert _places(dials_in, *_DIALING, ".connect(") == set(DIALS)


def test_no_method_only_calls_its_twin():
    """A new one? Use `twin` or `blocking_twin` of `callboard/closing.py`."""
    assert _places(twins_in, "_wait(", "on_a_thread(", "to_thread(") == set(TWINS)


def test_nothing_else_speaks_web_socket():
    assert {name for name, text in _sources("websockets") if "from websockets" in text} == (
        WEB_SOCKETS
    )
    assert {name for name, _ in _sources("258EAFA5-E914-47DA", "Sec-WebSocket")} == set()


# ----------------------------------------------------------------- that the tests see siblings


@pytest.mark.parametrize(
    "body",
    [
        f"while True:\n  time.{SLEEP}(0.1)",
        "for _ in range(9):\n  try:\n    f()\n  except OSError:\n    stop.wait(pause)",
        f"while True:\n  try:\n    f()\n  except OSError:\n    await asyncio.{SLEEP}(1)",
        f"while busy:\n  with lock:\n    {SLEEP}(pause)",
        "self._pause = min(2 * self._pause, LONGEST)",
        "delay = min(delay * 2, 5.0)",
    ],
)
def test_a_loop_with_pauses_is_found(body):
    lines = "\n".join(f"    {line}" for line in body.split("\n"))

    assert [*pauses_in(ast.parse(f"async def again(self):\n{lines}"))] == ["again"]


@pytest.mark.parametrize(
    "body",
    [
        "for _ in retrying(backoff, 5.0):\n  f()",
        "while not stop.wait(1.0):\n  f()",
        "await actor.sleep(backoff.next_pause())",
        "size = min(2 * size, LARGEST)",
    ],
)
def test_what_is_no_loop_with_pauses_is_not_found(body):
    lines = "\n".join(f"    {line}" for line in body.split("\n"))

    assert not [*pauses_in(ast.parse(f"async def again(self):\n{lines}"))]


def test_a_bounded_queue_is_found():
    source = """
class Waiting:
    def __init__(self, limit):
        self._items, self._limit = deque(), limit

    def put(self, item):
        if len(self._items) >= self._limit:
            self.dropped += 1
"""
    assert [*queues_in(ast.parse(source))] == ["Waiting"]
    assert not [*queues_in(ast.parse(source.replace("deque()", "BoundedQueue(limit)")))]


@pytest.mark.parametrize(
    "call",
    ["socket.create_connection(a)", "await asyncio.open_connection(h, p)", "sock.connect(a)"],
)
def test_a_dial_is_found(call):
    assert [*dials_in(ast.parse(f"async def dial():\n    {call}"))] == ["dial"]
    assert not [*dials_in(ast.parse("node.connect(address)"))]


@pytest.mark.parametrize(
    "method",
    [
        "def find(self, name):\n    return self._wait(self.afind(name))",
        "async def afind(self, name):\n    return await on_a_thread(self.find, name)",
        "async def afind(self, name):\n    await asyncio.to_thread(self.find)",
    ],
)
def test_a_method_that_only_calls_its_twin_is_found(method):
    assert len([*twins_in(ast.parse(method))]) == 1
    assert not [*twins_in(ast.parse(method.replace("self.", "other.")))]
