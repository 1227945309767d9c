"""Mistakes of programs: each is a typed error, or a line in the log, with the remedy."""

import gc
import logging
import os
import socket
from dataclasses import dataclass

import pytest

from callboard import Actor, CallboardError, Child, Node, errors, handler, message
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
        (lambda n, e: n.listen("127.0.0.1", "4"), errors.WrongArgument, "a port is a number"),
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
        (lambda: 1, "code does not travel"),
        (Echo, "code does not travel"),
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


def test_a_pause_that_nobody_awaits_is_told_once(node, caplog):
    sleepy = node.spawn(Sleepy)

    assert [sleepy.ask(A()).result(5) for _ in range(3)] == [1, 1, 1]

    gc.collect()
    eventually(lambda: "await self.sleep" in caplog.text)
    assert caplog.text.count("Sleepy called self.sleep() and went on") == 1


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
