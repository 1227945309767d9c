"""What a forked child finds of its parent's objects: typed errors, and no descriptors."""

import ast
import os
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import callboard
from callboard import Actor, Entity, Node, event, handler, message
from callboard.broker import Backend, Endpoint
from callboard.closing import Closing
from callboard.commitlog import CommitLog, LogError, LogLocked, LogReader
from callboard.entity.state.sqlite import SqliteState
from callboard.errors import CallboardError
from callboard.flow import Flow, FlowBroker
from callboard.flow.factories import FlowSpawn
from callboard.flow.protocol.message import Message
from callboard.flow.record_file import RecordFile
from callboard.gateway import Gateway, Module, ModuleOptions
from callboard.lease.leases import LeaseValue
from callboard.lease.sqlite import SqliteLeases
from callboard.mqtt import Router, RouterConfig
from callboard.mqtt.service.bridge import BridgeSettings
from callboard.mqtt.service.bridge_relay import BridgeTopics
from callboard.operation.health import HealthServer
from callboard.proxies.events import NodeDown
from callboard.store.errors import StoreError
from callboard.support import after_fork
from tests.callboard.flow.cast import Collector
from tests.polling import eventually
from tests.sources import mentioning

#: Seconds after which a child that waits for a thread of its parent is ended.
CHILD_LIMIT = 20

#: What libraries leave open that names no file and no peer.
ANONYMOUS = ("/dev/null", "anon_inode:[eventfd]", "anon_inode:[eventpoll]")


class Echo(Actor):
    @handler
    def on_text(self, msg: str) -> str:
        return msg


class Sleepy(Actor):
    @handler
    def on_event(self, msg: int) -> int:
        BUSY.set()
        GO_ON.wait(CHILD_LIMIT)
        return msg


BUSY, GO_ON = threading.Event(), threading.Event()


@message("fork-tests.Counted")
@dataclass
class Counted:
    by: int


class Tally(Entity):
    def __init__(self) -> None:
        self.count = 0

    @handler
    def on_add(self, msg: int) -> int:
        self.persist(Counted(msg))
        return self.count

    @event
    def on_counted(self, event: Counted) -> None:
        self.count += event.by


class Silent(Module):
    pass


class Made(NamedTuple):
    """An object of the parent: calls that a copy refuses, and calls that do nothing there."""

    uses: tuple[Callable[[], Any], ...]
    ends: tuple[Callable[[], Any], ...]


def make_log(folder: Path, stack: ExitStack) -> Made:
    log = stack.enter_context(CommitLog(folder / "log", columns=bool(find_spec("pyarrow"))))
    log.append("/a", 1)
    producer, reader = log.producer("p"), stack.enter_context(log.reader("r"))
    follower = log.follow()
    return Made(
        (
            lambda: log.append("/a", 2),
            lambda: log.append_batch([1, 2], topic="/a"),
            lambda: producer.append("/a", 2),
            log.flush,
            log.trim,
            lambda: log.end,
            lambda: log.durable,
            lambda: list(log.read()),
            lambda: log.producer("q"),
            lambda: next(iter(follower)),
            reader.poll,
            reader.commit,
            lambda: next(iter(reader)),
        ),
        (log.close, reader.close, lambda: log.__exit__(None, None, None)),
    )


def make_node(folder: Path, stack: ExitStack) -> Made:
    node, other = (stack.enter_context(Node(name)) for name in ("a", "b"))
    node.listen()
    assert other.connect(node.address)
    node.listen(f"unix:{folder}/s")
    node.register("echo", node.spawn(Echo))
    echo, far = node.spawn(Echo), other.find("echo").result(10)
    assert far is not None
    busy = node.spawn(Sleepy)
    answer = busy.ask(1)
    assert BUSY.wait(10)
    stack.callback(answer.result, 10)
    stack.callback(GO_ON.set)
    return Made(
        (
            lambda: echo.tell("x"),
            lambda: echo.ask("x").result(5),
            lambda: far.ask("x").result(5),
            lambda: busy.ask(2).result(5),
            lambda: busy.tell(2),
            lambda: node.find("echo").result(5),
            node.listen,
        ),
        (node.close, other.close, lambda: node.__exit__(None, None, None)),
    )


def make_workers(folder: Path, stack: ExitStack) -> Made:
    node = stack.enter_context(Node("boss"))
    worker = node.workers(1)[0]
    worker.ready.result(60)
    return Made((lambda: node.spawn(Echo).ask("x").result(5),), (node.close,))


def make_entities(folder: Path, stack: ExitStack) -> Made:
    node = stack.enter_context(Node("shop"))
    node.host(Tally, state=f"sqlite:{folder}/state.db")
    tally = node.entity(Tally, "k")
    assert tally.ask(1).result(20) == 1
    return Made((lambda: tally.ask(1).result(5), lambda: tally.tell(1)), (node.close,))


def make_state(folder: Path, stack: ExitStack) -> Made:
    path = folder / "state.db"
    state = SqliteState(path, "w")
    stack.callback(state.close)
    leases = SqliteLeases(folder / "leases.db", "w")
    stack.callback(leases.close)
    return Made(
        (
            lambda: state.claim("t", {1: 1}),
            lambda: state.journal("t"),
            lambda: leases.read("x"),
            lambda: leases.write("x", LeaseValue("w", 1, ""), 0),
            lambda: SqliteState(path, "child"),
        ),
        (state.close, leases.close),
    )


def make_store(folder: Path, stack: ExitStack) -> Made:
    endpoint = stack.enter_context(Endpoint())
    store = endpoint.attach_master("prices", Backend.SQLite, {"path": f"{folder}/p.db"})
    store.put("a", 1)
    subscriber = endpoint.make_subscriber(["/x"])
    subscriber.fd()
    publisher = endpoint.make_publisher("/x")
    publisher.fd()
    endpoint.listen_web_socket()
    return Made(
        (
            lambda: store.put("b", 2),
            lambda: store.get("a"),
            lambda: endpoint.publish("/x", 1),
            subscriber.get,
        ),
        (publisher.close, subscriber.close, store.close, endpoint.shutdown, endpoint.close),
    )


def make_router(folder: Path, stack: ExitStack) -> Made:
    far = stack.enter_context(Router(RouterConfig(console="127.0.0.1:0")))
    bridge = BridgeSettings(f"127.0.0.1:{far.port}", (BridgeTopics("t/#", "in", 1, ""),))
    config = RouterConfig(directory=folder / "journal", bridges=(bridge,))
    router = stack.enter_context(Router(config))
    eventually(lambda: router.bridges[0].is_connected)
    client = stack.enter_context(socket.create_connection(("127.0.0.1", router.port)))
    client.sendall(b"\x10\x0d\x00\x04MQTT\x05\x02\x00\x00\x00\x00\x00")
    assert client.recv(1)
    after_fork.own_socket(client)  # the test's own end
    return Made((lambda: router.call(int),), (router.close, far.close))


def make_gateway(folder: Path, stack: ExitStack) -> Made:
    gateway = stack.enter_context(Gateway())
    gateway.add_module("in", Silent)
    options = ModuleOptions(store=folder / "spool")
    gateway.add_module("out", "file", {"path": f"{folder}/out.jsonl"}, options=options)
    gateway.link("in", "out")
    gateway.start()
    gateway.publish("in", b"x")
    return Made((lambda: gateway.publish("in", b"y"),), (gateway.close,))


def make_flows(folder: Path, stack: ExitStack) -> Made:
    node = stack.enter_context(Node("flows"))
    broker = stack.enter_context(FlowBroker(node, factory=FlowSpawn(node, Collector)))
    flow = Flow.connect(broker.ref, "extract", node=node, timeout=10)
    stack.callback(flow.close)
    file = RecordFile(folder / "f.zio")
    stack.callback(file.close)
    file.append([Message("DAT", "", ())])
    return Made(
        (
            lambda: file.append([Message("DAT", "", ())]),
            lambda: file.read(0, 1),
            lambda: Flow.connect(broker.ref, "extract", node=node, timeout=5),
        ),
        (flow.close, broker.close, file.close),
    )


def make_zeromq(folder: Path, stack: ExitStack) -> Made:
    pytest.importorskip("zmq")
    from callboard.zeek.doors.zeek_logger import ZeekLogger

    broker = FlowBroker.bind("tcp://127.0.0.1:0", lambda _: None)
    stack.callback(broker.close)
    logger = stack.enter_context(ZeekLogger(folder / "logs", "tcp://127.0.0.1:0"))
    client = socket.create_connection(("127.0.0.1", int(broker.address.rpartition(":")[2])))
    after_fork.own_socket(stack.enter_context(client))
    assert client.recv(10)
    return Made((), (broker.close, logger.close))


def make_pages(folder: Path, stack: ExitStack) -> Made:
    pytest.importorskip("uvicorn")
    node = stack.enter_context(Node("pages", dashboard=True))
    health = stack.enter_context(HealthServer(node))
    client = stack.enter_context(socket.create_connection(("127.0.0.1", health.port)))
    after_fork.own_socket(client)
    client.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert client.recv(10)
    return Made((), (health.close, node.close))


def make_served_logs(folder: Path, stack: ExitStack) -> Made:
    pytest.importorskip("pyarrow.flight")
    CommitLog(folder / "served").close()
    node = stack.enter_context(Node("logs", serve_logs={"l": folder / "served"}))
    node.listen_logs()
    return Made((lambda: node.spawn(Echo).ask("x").result(5),), (node.close,))


KINDS = {
    name.removeprefix("make_"): make
    for name, make in list(globals().items())
    if name.startswith("make_")
}


def descriptors() -> dict[int, str]:
    """Return the open descriptors, and what they lead to."""
    found = {}
    for link in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            found[int(link.name)] = str(link.readlink())
    return found


def waited_too_long(_number: int, frame: Any) -> None:
    """End a child that waits, and print where it does."""
    traceback.print_stack(frame, file=sys.__stderr__)
    os._exit(1)


def in_child(work: Callable[[], list[str]]) -> list[str]:
    """Return what `work` returns in a forked child, which ends without any clean-up."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:  # nothing of pytest may go on here
        signal.signal(signal.SIGALRM, waited_too_long)
        signal.alarm(CHILD_LIMIT)
        try:
            said = work()
        except BaseException as error:  # noqa: BLE001  # the parent has to read it
            said = [f"{type(error).__name__}: {error}"]
        os.write(writer, "\n".join(said).encode() or b"nothing")
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as lines:
        said = lines.read().splitlines()
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0, "the child waits for a thread of its parent"
    return [] if said == ["nothing"] else said


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    BUSY.clear()
    GO_ON.clear()
    with ExitStack() as made:
        yield made


TYPED = (CallboardError, LogError, StoreError)


def refused(uses: tuple[Callable[[], Any], ...]) -> list[str]:
    """Return what is wrong with the answers of a copy."""
    wrong = []
    for number, use in enumerate(uses):
        try:
            wrong.append(f"use {number} returned {use()!r}")
        except TYPED as error:
            if "forked" not in str(error):
                wrong.append(f"use {number}: {type(error).__name__}: {error}")
        except BaseException as error:  # noqa: BLE001
            wrong.append(f"use {number}: {type(error).__name__}: {error}")
    return wrong


def test_what_was_poked_in_the_parent_is_poked_again_in_a_child():
    class Queue:
        def __init__(self):
            self.wake_pending = False
            after_fork.own_wake(self)

    queue = Queue()
    queue.wake_pending = True

    assert in_child(lambda: [str(queue.wake_pending)]) == ["False"]
    assert queue.wake_pending


def test_whatever_can_be_poked_is_registered():
    files = {path: path.read_text() for path in Path(callboard.__file__).parent.rglob("*.py")}
    poked = {path for path, text in files.items() if "self.wake_pending = True" in text}

    assert len(poked) >= 4
    assert {path for path in poked if "after_fork.own_wake(self)" not in files[path]} == set()


@pytest.mark.parametrize("kind", KINDS)
def test_a_child_that_uses_an_object_of_its_parent_gets_a_typed_error(kind, tmp_path, stack):
    made = KINDS[kind](tmp_path, stack)

    assert in_child(lambda: refused(made.uses)) == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_child_that_closes_an_object_of_its_parent_changes_nothing(kind, tmp_path, stack):
    made = KINDS[kind](tmp_path, stack)

    def end() -> list[str]:
        for close in made.ends:
            close()
        return []

    before = sorted(tmp_path.rglob("*"))
    assert in_child(end) == []
    assert [path for path in before if not path.exists()] == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_child_holds_no_descriptor_of_its_parents_objects(kind, tmp_path, stack):
    before = descriptors()
    KINDS[kind](tmp_path, stack)
    opened = descriptors().keys() - before.keys()
    assert opened

    def look() -> list[str]:
        return [
            f"{number}: {where}"
            for number, where in descriptors().items()
            if number in opened and where not in ANONYMOUS
        ]

    # A thread of the object may have had its folder open for a moment when the child began.
    eventually(lambda: in_child(look) == [])


#: Makes one of many kinds, and forks in the way that is asked for; the child just ends.
ENDS = """
import gc, multiprocessing, os, sys, tempfile
from pathlib import Path
from contextlib import ExitStack
from tests import test_after_fork as kinds
how, folder = sys.argv[1], Path(tempfile.mkdtemp())
with ExitStack() as stack:
    made = []
    for name in ("log", "state", "store", "router", "flows", "zeromq"):
        (folder / name).mkdir()
        made.append(kinds.KINDS[name](folder / name, stack))
    if how == "multiprocessing":
        child = multiprocessing.get_context("fork").Process(target=gc.collect)
        child.start()
        child.join(30)
        code = child.exitcode
    else:
        child = os.fork()
        if child == 0 and how == "leave the block":
            stack.close()
            del made
            gc.collect()
            sys.exit(0)
        elif child == 0:
            sys.exit(0)  # with all of it in a frame of this module
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    log = made[0]
    print("child", code, flush=True)
print("done", flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["multiprocessing", "exit", "leave the block"])
def test_a_child_ends_as_soon_as_its_work_is_done_and_the_parent_goes_on(how):
    program = subprocess.run(
        [sys.executable, "-c", ENDS, how],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert program.stdout.splitlines() == ["child 0", "done"], program.stderr
    assert "Traceback" not in program.stderr, program.stderr


@pytest.mark.slow
def test_a_child_waits_for_no_lock_that_a_thread_of_its_parent_holds(tmp_path, stack):
    log = stack.enter_context(CommitLog(tmp_path / "log", sync="none"))
    node = stack.enter_context(Node())
    echo, over = node.spawn(Echo), threading.Event()

    def work() -> None:
        while not over.is_set():
            log.append("/a", 1)
            log.flush()
            echo.ask("x").result(10)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        uses = (lambda: log.append("/a", 2), log.flush, lambda: echo.tell("x"))
        for _ in range(20):
            assert in_child(lambda: refused(uses)) == []
    finally:
        over.set()
        for thread in threads:
            thread.join()


def test_what_a_parent_has_acknowledged_stands_after_a_child_used_its_log(tmp_path):
    with CommitLog(tmp_path / "log") as log:
        log.append("/a", 0)
        assert in_child(lambda: refused((lambda: log.append("/child", 1), log.flush))) == []
        log.append("/a", 1)
        log.flush()
    assert [record.payload for record in LogReader(tmp_path / "log")] == [0, 1]


def test_a_child_keeps_the_parents_lock_and_cannot_take_it(tmp_path):
    with CommitLog(tmp_path / "log"):

        def take() -> list[str]:
            with suppress(LogLocked):
                CommitLog(tmp_path / "log").close()
                return ["taken"]
            return []

        assert in_child(take) == []
        assert in_child(take) == []  # the end of the first child released nothing


def test_a_child_can_have_objects_of_its_own(tmp_path, stack):
    make_log(tmp_path, stack)
    make_node(tmp_path, stack)

    def work() -> list[str]:
        with Node("child") as node, Node("other") as other, CommitLog(tmp_path / "own") as log:
            node.listen()
            other.connect(node.address)
            node.register("echo", node.spawn(Echo))
            echo = other.find("echo").result(10)
            log.append("/a", 1)
            with log.reader("mine") as reader:
                read = [record.payload for record in reader.poll()]
            return [] if echo.ask("x").result(10) == "x" and read == [1] else ["wrong"]

    assert in_child(work) == []


def test_a_child_of_a_child_refuses_the_objects_of_both(tmp_path, stack):
    old = make_log(tmp_path, stack)

    def work() -> list[str]:
        with CommitLog(tmp_path / "own") as log:
            inner = in_child(lambda: refused((*old.uses, lambda: log.append("/a", 1))))
            log.append("/a", 1)
            return inner

    assert in_child(work) == []


def test_a_thread_of_the_node_that_forks_in_a_handler_runs_nothing_more_in_the_child(stack):
    reader, writer = os.pipe()

    class Forking(Actor):
        @handler
        def on_text(self, msg: str) -> int:
            child = os.fork()
            if child == 0:
                signal.alarm(CHILD_LIMIT)
            return child

        @handler
        def on_number(self, msg: int) -> int:
            os.write(writer, b"x")
            return msg

    node = stack.enter_context(Node())
    forking = node.spawn(Forking)
    child, number = forking.ask("x"), forking.ask(1)
    _, status = os.waitpid(child.result(10), 0)
    assert os.waitstatus_to_exitcode(status) != -signal.SIGALRM
    assert number.result(10) == 1
    os.close(writer)
    assert os.read(reader, 10) == b"x"
    os.close(reader)


#: Opens a port and a log, forks a child that waits for its input, and waits to be killed.
OUTLIVED = """
import os, sys
from callboard import Node
from callboard.commitlog import CommitLog
node, log = Node(), CommitLog(sys.argv[1])
node.listen("127.0.0.1", 0)
child = os.fork()
if child:
    print(child, node.address, flush=True)
sys.stdin.read()
"""


def test_a_child_that_outlives_its_parent_holds_neither_its_port_nor_its_log(tmp_path):
    command = [sys.executable, "-c", OUTLIVED, str(tmp_path / "log")]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        child, address = parent.stdout.readline().split()
        try:
            with Node() as client:
                client.connect(address)
                down = threading.Event()
                with client.subscribed(
                    lambda event: isinstance(event, NodeDown) and down.set()
                ):
                    parent.kill()
                    parent.wait()
                    assert down.wait(10)
            CommitLog(tmp_path / "log").close()
            with Node() as service:
                service.listen("127.0.0.1", int(address.rpartition(":")[2]))
        finally:
            os.kill(int(child), signal.SIGKILL)


def test_every_public_object_that_is_closed_knows_whether_it_is_a_copy():
    class Planted(Closing):
        closed = 0

        def close(self) -> None:
            self.closed += 1

    planted = Planted()

    def close() -> list[str]:
        with planted:
            pass
        return [] if planted.closed == 0 and after_fork.is_copy(planted) else ["closed"]

    assert in_child(close) == []
    planted.close()
    assert planted.closed == 1


#: Calls that return a descriptor which lives on.
OPENERS = {
    "os.open", "os.pipe", "os.dup", "os.eventfd", "socket.socket", "socket.socketpair",
    "socket.create_server", "socket.create_connection", "socket.fromfd", "select.epoll",
    "selectors.DefaultSelector", "sqlite3.connect", "psycopg.connect", "subprocess.Popen",
    "zmq.Context", "zmq.Context.instance", "pynng.Pair0", "h5py.File", "open_plain",
    "asyncio.open_connection", "asyncio.new_event_loop", "tempfile.TemporaryFile",
    "create_datagram_endpoint", "os.openpty", "mmap.mmap", "inotify_init", "os.memfd_create",
}  # fmt: skip

#: Modules that open something and do not register it, and why none of it outlives the call or
#: matters in a child.
UNREGISTERED = {
    "support/after_fork.py": "puts them in the place of others",
    "support/files/user_file.py": "closed by its caller at once",
    "support/files/private_file.py": "its caller has the descriptor",
    "cbor/pieces.py": "closed at once",
    "operation/notify.py": "closed at once",
    "broker/store_file.py": "closed at once",
    "commitlog/remote/guard.py": "closed at once",
    "mqtt/port/stream.py": "accepted by a listener, whose connections are dropped with it",
    "mqtt/port/socket_stream.py": "accepted by a listener, as above",
    "gateway/outprocess_host.py": "the only object of its process",
    "pipeline/process/worker_python.py": "the only object of its process",
}


def test_every_module_that_opens_a_descriptor_registers_it():
    root = Path(after_fork.__file__).parents[1]
    missing = []
    for path, tree in mentioning(root, *{name.rpartition(".")[2] for name in OPENERS}):
        name = str(path.relative_to(root))
        if name.startswith(("simulation/", "demo/", "cli/")) or path.name.endswith("_test.py"):
            continue  # programs of their own, which fork nothing
        calls = {
            ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)
        }
        kept = {call for call in calls if call in OPENERS}
        if kept and "after_fork" not in path.read_text() and name not in UNREGISTERED:
            missing.append(f"{name}: {', '.join(sorted(kept))}")
    assert missing == []
