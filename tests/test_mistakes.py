"""Mistakes of programs: each is a typed error, or a line in the log, with the remedy."""

import gc
import logging
import os
import socket
from abc import abstractmethod
from dataclasses import dataclass

import pytest

from callboard import (
    Actor,
    CallboardError,
    Child,
    Endpoint,
    Future,
    Mailbox,
    Node,
    errors,
    handler,
    message,
)
from tests.polling import eventually


@message("tests.mistakes.A")
@dataclass(frozen=True)
class A:
    x: int = 1


@message("tests.mistakes.B")
@dataclass(frozen=True)
class B:
    x: int = 1


class Echo(Actor):
    @handler
    def on_a(self, msg: A) -> int:
        return msg.x

    def plain(self, k: int) -> int:
        return k


class Asks(Actor):
    def __init__(self, other=None):
        self.other = other

    @handler
    def sync(self, msg: A):
        return self.other.ask(A(5))

    @handler
    async def asynchronous(self, msg: B):
        return self.other.ask(A(5))

    async def answer(self):
        return 5

    @handler
    def returns_a_coroutine(self, msg: int):
        return self.answer()

    @handler
    def returns_a_pause(self, msg: float):
        return self.sleep(0)


class Sleepy(Actor):
    @handler
    async def forgets(self, msg: A) -> int:
        self.sleep(0.001)
        return 1

    @handler
    async def keeps(self, msg: B) -> int:
        pause = self.sleep(0.0)
        await self.sleep(0.02)
        await pause
        self.sleep(1.0).cancel()
        return 1


class Object:
    pass


@pytest.fixture(scope="module")
def node():
    with Node() as made:
        yield made


@pytest.fixture
def echo(node):
    return node.spawn(Echo)


def two_handlers():
    class Two(Actor):
        @handler
        def first(self, msg: A) -> int:
            return 1

        @handler
        def second(self, msg: A | int) -> int:
            return 2


def bare_message():
    @message
    @dataclass
    class Nameless:
        x: int


@pytest.mark.parametrize(
    ("mistake", "error", "remedy"),
    [
        (two_handlers, errors.InvalidHandler, "second and first both handle A.* join them"),
        (bare_message, errors.WrongArgument, r'@message\("shop.Nameless"\)'),
    ],
)
def test_classes_that_cannot_be_meant_are_refused_when_they_are_made(mistake, error, remedy):
    with pytest.raises(error, match=remedy) as caught:
        mistake()

    assert isinstance(caught.value, CallboardError)


def test_a_subclass_may_handle_what_its_base_does():
    class Other(Echo):
        @handler
        def other(self, msg: A) -> int:
            return 2


@pytest.mark.parametrize(
    ("call", "error", "remedy"),
    [
        (lambda n, e: n.monitor("x"), errors.WrongArgument, "takes a ref, as spawn"),
        (lambda n, e: n.register("x", print), errors.WrongArgument, "takes a ref, as spawn"),
        (lambda n, e: n.register("x", Echo), errors.WrongArgument, "takes a ref, as spawn"),
        (lambda n, e: n.group("g").join("x"), errors.WrongArgument, "takes a ref, as spawn"),
        (lambda n, e: n.supervise(Child(Echo)), errors.WrongArgument, r"\[Child\("),
        (lambda n, e: n.supervise(Echo), errors.WrongArgument, r"\[Child\("),
        (lambda n, e: n.supervise([Echo]), errors.WrongArgument, r"write Child\(Echo"),
        (lambda n, e: n.listen("127.0.0.1:4"), errors.InvalidAddress, r"'127.0.0.1', 4\)"),
        (lambda n, e: n.listen("127.0.0.1", "4"), errors.WrongArgument, "must be a number"),
        (lambda n, e: n.listen("127.0.0.1", 1 << 20), errors.InvalidAddress, "0 and 65535"),
        (lambda n, e: e.call(Echo.on_a, A()).result(5), errors.NoSuchMethod, r"ref\.ask"),
        (lambda n, e: e.proxy().on_a(A()).result(5), errors.NoSuchMethod, r"ref\.ask"),
        (lambda n, e: e.ask(A(), timeout="5"), errors.InvalidSeconds, "number of seconds"),
        (lambda n, e: e.ask(B()).result(5), errors.UnexpectedMessage, "add one with @handler"),
        (lambda n, e: n.connect("hello"), errors.InvalidAddress, "basp://HOST:PORT"),
        (lambda n, e: n.spawn(Echo, on="hello"), errors.InvalidAddress, "basp://HOST:PORT"),
    ],
)
def test_arguments_that_cannot_be_meant_are_told_with_what_to_pass(
    node, echo, call, error, remedy
):
    with pytest.raises(error, match=remedy) as caught:
        call(node, echo)

    assert isinstance(caught.value, CallboardError)


def test_a_port_that_is_taken_is_told_with_the_next_step(node):
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(errors.PortUnavailable, match="choose another port") as caught,
    ):
        node.listen("127.0.0.1", taken.getsockname()[1])

    assert isinstance(caught.value, OSError)
    assert caught.value.errno is not None


@pytest.mark.parametrize(
    ("value", "remedy"),
    [
        (lambda: 1, "code cannot be sent"),
        (Echo, "code cannot be sent"),
        (Object(), "make it a @dataclass"),
    ],
)
def test_what_cannot_travel_is_told_with_advice_that_helps(node, value, remedy):
    with Node() as other:
        other.listen()
        other.register("echo", other.spawn(Echo))
        ref = node.remote_actor(other.address + "/echo")

        with pytest.raises(errors.NotSerializable, match=remedy):
            ref.tell(value)


@pytest.mark.parametrize("question", [A(), B(), 1, 1.0])
def test_an_answer_that_was_to_be_awaited_fails_its_handler(node, echo, question):
    asks = node.spawn(Asks, echo)

    with pytest.raises(errors.RemoteError, match=r"NotAwaited: .*return await"):
        asks.ask(question).result(5)


@pytest.mark.slow
def test_a_pause_that_nobody_awaits_is_told_once(node, caplog):
    sleepy = node.spawn(Sleepy)

    assert [sleepy.ask(A()).result(5) for _ in range(3)] == [1, 1, 1]

    gc.collect()
    eventually(lambda: "await self.sleep" in caplog.text)
    assert caplog.text.count("Sleepy called self.sleep() without an await") == 1


@pytest.mark.slow
def test_a_pause_that_is_awaited_later_or_given_up_is_none(caplog):
    with Node() as other:
        assert other.spawn(Sleepy).ask(B()).result(5) == 1

        gc.collect()

    assert "Sleepy" not in caplog.text


def test_a_tell_that_nobody_handles_is_told_once_for_each_type(caplog):
    with caplog.at_level(logging.WARNING), Node() as other:
        for _ in range(3):
            echo = other.spawn(Echo)
            echo.tell(B())
            echo.tell("text")

        eventually(lambda: other.stats().unexpected == 6)

    assert caplog.text.count("Echo has no handler for B; add one with @handler") == 1
    assert caplog.text.count("Echo has no handler for str; add one with @handler") == 1


def test_a_tell_of_another_node_that_nobody_handles_is_told_there(node, caplog):
    with Node() as other:
        other.listen()
        other.register("echo", other.spawn(Echo))
        node.remote_actor(other.address + "/echo").tell(B())

        eventually(lambda: "Echo has no handler for B" in caplog.text)


def test_a_fork_cannot_use_the_nodes_of_its_parent(node, echo):
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:  # nothing of pytest may go on here
        told = []
        try:
            for call in (
                lambda: echo.ask(A()).result(5),
                lambda: echo.ask(A()).result(5),
                lambda: echo.tell(A()),
                lambda: node.listen(),
                lambda: node.find("x").result(5),
            ):
                try:
                    call()
                    told.append("nothing")
                except errors.NodeClosed as error:
                    told.append("spawn" if "make a Node here" in str(error) else str(error))
            node.close()
        except BaseException as error:  # noqa: BLE001  # the parent has to read it
            told.append(repr(error))
        finally:
            os.write(writer, ",".join(told).encode())
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as lines:
        assert lines.read() == "spawn,spawn,spawn,spawn,spawn"
    os.waitpid(child, 0)
    assert echo.ask(A(3)).result(5) == 3


# --- classes of actors ---


def static_handler():
    class Static(Actor):
        @handler
        @staticmethod
        def on_a(msg: A) -> int:
            return 1


def class_handler():
    class OfClass(Actor):
        @classmethod
        @handler
        def on_a(cls, msg: A) -> int:
            return 1


def property_handler():
    class Property(Actor):
        @property
        @handler
        def on_a(self, msg: A) -> int:
            return 1


def generator():
    class Yields(Actor):
        @handler
        def on_a(self, msg: A):
            yield 1


def async_generator():
    class YieldsLater(Actor):
        @handler
        async def on_a(self, msg: A):
            yield 1


def handler_of_a_message():
    class Given(Actor):
        @handler(A)
        def on_a(self, msg) -> int:
            return 1


def handler_that_is_init():
    class Init(Actor):
        @handler
        def __init__(self, msg: A) -> None:
            pass


def async_init():
    class Async(Actor):
        async def __init__(self) -> None:
            pass


def class_with(**attributes):
    return lambda: type("Odd", (Echo,), attributes)


@pytest.mark.parametrize(
    ("mistake", "error", "remedy"),
    [
        (static_handler, errors.InvalidHandler, r"plain method \(self, msg"),
        (class_handler, errors.InvalidHandler, r"plain method \(self, msg"),
        (property_handler, errors.InvalidHandler, r"plain method \(self, msg"),
        (generator, errors.InvalidHandler, "return a list"),
        (async_generator, errors.InvalidHandler, "return a list"),
        (handler_of_a_message, errors.InvalidHandler, r"def a\(self, msg: A\)"),
        (handler_that_is_init, errors.InvalidHandler, "another name"),
        (lambda: handler("x"), errors.InvalidHandler, "takes no message"),
        (async_init, errors.WrongArgument, "move its code to a handler"),
        (class_with(mailbox=100), errors.WrongArgument, r"Mailbox\(limit"),
        (class_with(detached="yes"), errors.WrongArgument, "True or False"),
        (class_with(trap_exit="no"), errors.WrongArgument, "True or False"),
        (class_with(concurrent_limit="3"), errors.WrongArgument, "whole number"),
        (class_with(concurrent_limit=0), errors.WrongValue, "at least 1"),
        (class_with(remote_methods="plain"), errors.WrongArgument, "set of names"),
        (class_with(remote_methods={"plian"}), errors.WrongValue, "plian, which it does"),
        (lambda: Mailbox(limit="3"), errors.WrongArgument, "whole number"),
        (lambda: Mailbox(limit=True), errors.WrongArgument, "whole number"),
        (lambda: Mailbox(limit=1.5), errors.WrongArgument, "whole number"),
        (lambda: Mailbox(bytes=0), errors.WrongValue, "at least 1"),
        (lambda: Mailbox(limit=1, on_full="drop"), errors.WrongValue, "drop_newest"),
        (lambda: Echo.with_options(mailbox=5), errors.WrongArgument, r"Mailbox\(limit"),
        (lambda: Echo.with_options(detached=1.0), errors.WrongArgument, "True or False"),
        (lambda: message(""), errors.WrongValue, "1 to 255"),
        (lambda: message("a\nb"), errors.WrongValue, "printable"),
    ],
)
def test_what_a_class_cannot_mean_is_told_when_it_is_made(mistake, error, remedy):
    with pytest.raises(error, match=remedy):
        mistake()


def test_an_option_that_is_spelled_otherwise_is_told(caplog):
    class Till(Actor):
        trap_exits = True
        mail_box = None

    assert "Till.trap_exits is not an option of actors; use trap_exit" in caplog.text
    assert "Till.mail_box is not an option of actors; use mailbox" in caplog.text


def test_an_end_that_was_asked_for_and_nobody_handles_is_told(node, caplog):
    class Watches(Actor):
        @handler
        def watch(self, msg: str) -> None:
            self.monitor(self.spawn(Echo)).ref.kill()

    node.spawn(Watches).tell("x")

    eventually(lambda: "Watches has no handler for Down; add one" in caplog.text)


def test_a_method_that_is_called_on_a_ref_is_told_with_how_to_call_it(echo):
    with pytest.raises(AttributeError, match=r"ref\.proxy\(\)\.total\(…\)"):
        echo.total()
    assert not hasattr(echo, "total")


def test_a_peer_that_is_waited_for_and_does_not_answer_is_told(caplog):
    with Endpoint() as endpoint:
        endpoint.peer_nosync("127.0.0.1", 1)
        eventually(lambda: "no node answers" in caplog.text)
    assert [one.levelname for one in caplog.records if "no node" in one.getMessage()] == [
        "WARNING"
    ]


def test_what_all_actors_of_a_class_would_share_is_told(caplog):
    class Shared(Actor):
        items: list = []
        LIMITS = {"a": 1}
        _own: set = set()

    text = "one list shared by all actors of the class; create it in __init__"
    assert caplog.text.count(text) == 1
    assert "LIMITS" not in caplog.text


class Abstract(Actor):
    @abstractmethod
    def lacking(self) -> None:
        """Subclasses have it."""


class Complete(Abstract):
    def lacking(self) -> int:
        return 1


@pytest.mark.parametrize(
    ("call", "error", "remedy"),
    [
        # spawn
        (lambda n, e: n.spawn(Echo()), errors.WrongArgument, r"spawn\(Echo, …\)"),
        (lambda n, e: n.spawn(lambda: 1), errors.WrongArgument, "derive it from"),
        (lambda n, e: n.spawn(dict), errors.WrongArgument, "derive it from"),
        (lambda n, e: n.spawn(Abstract), errors.WrongArgument, "that defines lacking"),
        (lambda n, e: n.spawn(Echo, on=n), errors.WrongArgument, r"node\.address"),
        (lambda n, e: n.spawn(Echo, on=["x"]), errors.WrongArgument, r"node\.address"),
        (lambda n, e: n.spawn(Echo, on=b"x"), errors.WrongArgument, "18 bytes"),
        (lambda n, e: n.remote_spawn("basp://h:1", Echo), errors.WrongArgument, "the name of"),
        (lambda n, e: n.offer("e", e), errors.WrongArgument, r"offer\('till', Till\)"),
        (lambda n, e: n.offer(Echo, "e"), errors.WrongArgument, r"offer\('till', Till\)"),
        (lambda n, e: n.workers("2"), errors.WrongArgument, "number of processes"),
        (lambda n, e: n.workers(True), errors.WrongArgument, "number of processes"),
        (lambda n, e: n.workers(0), errors.WrongValue, "start at least one"),
        # supervision
        (lambda n, e: Child(e), errors.WrongArgument, "derive it from"),
        (lambda n, e: Child(Echo, restart="always"), errors.WrongValue, "permanent"),
        (lambda n, e: supervise(n, intensity=3), errors.WrongArgument, r"\(3, 5\.0\)"),
        (lambda n, e: supervise(n, intensity="35"), errors.WrongArgument, r"\(3, 5\.0\)"),
        (lambda n, e: supervise(n, backoff=1.0), errors.WrongArgument, "longest pause"),
        (lambda n, e: supervise(n, strategy="one"), errors.WrongValue, "rest_for_one"),
        # messages
        (lambda n, e: e.ask(A).result(5), errors.UnexpectedMessage, r"send A\(…\)"),
        (lambda n, e: e.ask(Future()).result(5), errors.UnexpectedMessage, "await it"),
        (lambda n, e: e.ask(A(), priority="hihg"), errors.WrongValue, "'normal' or 'high'"),
        (lambda n, e: e.tell(A(), priority="low"), errors.WrongValue, "'normal' or 'high'"),
        (lambda n, e: e.ask(A(), retries="3"), errors.WrongArgument, "whole number"),
        (lambda n, e: e.ask(A(), retries=1, backoff=0), errors.InvalidSeconds, "more than 0"),
        (lambda n, e: e.call("plain", 1), errors.WrongArgument, r"ref\.proxy\(\)\.add"),
        # names and groups
        (lambda n, e: n.register(e, "x"), errors.WrongArgument, "must be a text"),
        (lambda n, e: n.unregister(e), errors.WrongArgument, "must be a text"),
        (lambda n, e: n.find(5), errors.WrongArgument, "must be a text"),
        (lambda n, e: n.find("a b"), errors.InvalidAddress, "begins with a letter"),
        (lambda n, e: n.find_all("a/b"), errors.InvalidAddress, "begins with a letter"),
        (lambda n, e: n.group(5), errors.WrongArgument, "must be a text"),
        (lambda n, e: n.group("g", routing="robin"), errors.WrongValue, "round_robin"),
        (lambda n, e: n.group("g", key="x"), errors.WrongValue, "routing='hash'"),
        (lambda n, e: n.group("g").leave("x"), errors.WrongArgument, "takes a ref"),
        (lambda n, e: n.group("g").ready("2"), errors.WrongArgument, "whole number"),
        (lambda n, e: n.group("g").map(5), errors.WrongArgument, "as a list"),
        (lambda n, e: n.group("g").map([], limit=0), errors.WrongValue, "at least 1"),
        (lambda n, e: keyed(n, e).ask(A()), AttributeError, "the key 'nope'"),
        # nodes and addresses
        (lambda n, e: n.connect(n), errors.WrongArgument, r"node\.address"),
        (lambda n, e: n.remote_actor(n), errors.WrongArgument, r"node\.address"),
        (lambda n, e: n.ref(e), errors.WrongArgument, r"str\(ref\)"),
        (lambda n, e: n.ref(5), errors.WrongArgument, r"str\(ref\)"),
        (lambda n, e: n.monitor_node("n"), errors.WrongArgument, "18 bytes"),
        (lambda n, e: n.disconnect("n"), errors.WrongArgument, "18 bytes"),
        (lambda n, e: n.listen(4000), errors.WrongArgument, r"'127.0.0.1', 4000"),
        (lambda n, e: n.listen(publish=Echo), errors.WrongArgument, "takes a ref"),
        (lambda n, e: n.subscribed(None).__enter__(), errors.WrongArgument, "a function"),
        (lambda n, e: Node(5), errors.WrongArgument, "must be a text"),
        (lambda n, e: Node(join="basp://h:1"), errors.WrongArgument, r"join=\['basp"),
        (lambda n, e: Node(join=[n]), errors.WrongArgument, r"node\.address"),
        (lambda n, e: Node(secret=5), errors.WrongArgument, "text or bytes"),
        (lambda n, e: Node(limits={"items": 5}), errors.WrongArgument, r"Limits\("),
        (lambda n, e: Node(tls=True), errors.WrongArgument, r"Tls\(certificate"),
        (lambda n, e: Node(spawnable=[Echo]), errors.WrongArgument, r"\{\"till\": Till\}"),
        (lambda n, e: Node(spawnable={"e": e}), errors.WrongArgument, "offered by its name"),
    ],
)
def test_more_arguments_are_told_with_what_to_pass(node, echo, call, error, remedy):
    with pytest.raises(error, match=remedy):
        call(node, echo)


def supervise(node, **options):
    return node.supervise([Child(Echo)], **options)


def keyed(node, ref):
    group = node.group("keyed", routing="hash", key="nope")
    group.join(ref)
    return group


def test_a_class_that_has_all_its_methods_is_spawned(node):
    assert node.spawn(Complete).call(Complete.lacking).result(5) == 1


def test_a_name_for_an_actor_that_has_ended_is_told(node, caplog):
    ref = node.spawn(Echo)
    ref.kill()
    eventually(lambda: node.runtime.contexts.get(ref.actor_id) is None)

    node.register("late", ref)

    assert "register('late', …): the actor has ended" in caplog.text


CLOSED_CALLS = {
    "ask": lambda n, r, far: r.ask(A()).result(5),
    "ask far": lambda n, r, far: far.ask(A()).result(5),
    "register": lambda n, r, far: n.register("x", r),
    "offer": lambda n, r, far: n.offer("e", Echo),
    "monitor_node": lambda n, r, far: n.monitor_node(bytes(18)),
    "disconnect": lambda n, r, far: n.disconnect(bytes(18)),
    "with": lambda n, r, far: n.__enter__(),
}


@pytest.fixture(scope="module")
def closed(node):
    node.listen()
    with Node("gone") as made:
        far = made.ref(str(node.spawn(Echo)))
        made.connect(node.address)
        assert far.ask(A()).result(5) == 1
        ref = made.spawn(Echo)
    return made, ref, far


@pytest.mark.parametrize("call", CLOSED_CALLS.values(), ids=CLOSED_CALLS)
def test_what_is_done_through_a_closed_node_is_told(closed, call):
    with pytest.raises(CallboardError, match="closed; create another node"):
        call(*closed)


@pytest.mark.parametrize(
    ("call", "error", "remedy"),
    [
        (lambda e: Endpoint("name"), errors.WrongArgument, "metrics_endpoint_name"),
        (lambda e: e.peer(5, 5), errors.WrongArgument, "'127.0.0.1'"),
        (lambda e: e.peer("127.0.0.1", "99"), errors.WrongArgument, "a port must be a number"),
        (lambda e: e.peer("127.0.0.1", 0), errors.InvalidAddress, "'127.0.0.1', 9999"),
        (lambda e: e.peer("basp://h:5", 5), errors.InvalidAddress, "'127.0.0.1', 9999"),
        (lambda e: e.unpeer("127.0.0.1", None), errors.WrongArgument, "must be a number"),
        (lambda e: e.await_peer("x", 1), errors.WrongValue, r"node_id\(\)"),
        (lambda e: e.attach_master("s", "sqlit"), CallboardError, r"Backend\.SQLite"),
        (lambda e: e.attach_master(""), errors.WrongValue, "needs a name"),
        (lambda e: e.attach_master(5), errors.WrongArgument, "must be a text"),
        (lambda e: e.attach_clone(5), errors.WrongArgument, "must be a text"),
    ],
)
def test_arguments_of_endpoints_are_told_with_what_to_pass(node, call, error, remedy):
    with Endpoint(node=node) as endpoint, pytest.raises(error, match=remedy):
        call(endpoint)
