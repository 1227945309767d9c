"""Code of users that raises what it likes, or blocks: it ends or holds up nobody else."""

import threading
import time
from dataclasses import dataclass

import pytest

from callboard import Actor, Child, Node, Supervisor, handler, message
from callboard.actors.errors import (
    ActorDown,
    AskTimeout,
    CallboardError,
    NotSpawnable,
    RemoteError,
)
from callboard.actors.system_actor import ERRAND_LIMIT
from callboard.basp.header import SPAWN_SERVER
from callboard.proxies.messages import Spawn
from callboard.support.text import class_name
from tests.callboard.support.test_text import Speechless
from tests.proxies.cast import Echo, connect, eventually

BLOCKS = Spawn("blocks", (), None)


class Nameless(type):
    def __getattribute__(cls, name):
        raise ValueError


class Unnamed(Exception, metaclass=Nameless):
    """Its class does not say what it is called."""


class Hidden(Exception):
    def __getattribute__(self, name):
        raise ValueError


class Derived(str):
    """A text with code of its own."""

    __slots__ = ()

    def __len__(self):
        raise ValueError

    __format__ = __str__ = __getitem__ = __len__


class Written(Exception):
    def __str__(self):
        return Derived("x")


RAISED = {
    "unnamed": Unnamed,
    "hidden": Hidden,
    "written": Written,
    "value": lambda: ValueError("no"),
    "exit": lambda: SystemExit(3),
    "interrupt": KeyboardInterrupt,
    "generator": GeneratorExit,
    "recursion": RecursionError,
    "mute": lambda: Speechless(ValueError("no")),
    "mute-exit": lambda: Speechless(SystemExit(3)),
    "mute-interrupt": lambda: Speechless(KeyboardInterrupt()),
    "mute-generator": lambda: Speechless(GeneratorExit()),
}
GATE = threading.Event()


class Odd(Actor):
    """Raises what it is told to, in its constructor or a handler."""

    def __init__(self, kind: str = "") -> None:
        if kind:
            raise RAISED[kind]()

    @handler
    def raises(self, kind: str) -> str:
        raise RAISED[kind]()

    @handler
    async def raises_later(self, kinds: list) -> str:
        await self.sleep(0)
        raise RAISED[kinds[0]]()

    @handler(concurrent=True)
    async def raises_beside(self, kinds: tuple) -> str:
        await self.sleep(0)
        raise RAISED[kinds[0]]()

    def call_me(self, kind: str) -> str:
        raise RAISED[kind]()


class Blocks(Actor):
    def __init__(self) -> None:
        GATE.wait(60)


class Slow(Actor):
    @handler
    def slow(self, msg: float) -> None:
        GATE.wait(60)


@message("tests.Mute")
@dataclass(frozen=True, repr=False)
class Mute:
    """A message that raises when it is made from bytes, or shown."""

    kind: str = ""
    made_of_bytes: bool = True

    def __post_init__(self) -> None:
        if self.kind and self.made_of_bytes:
            raise RAISED[self.kind]()

    def __repr__(self) -> str:
        raise RAISED[self.kind or "exit"]()

    __str__ = __repr__


def mute(kind: str) -> Mute:
    """Return one that its sender could make."""
    made = Mute()
    object.__setattr__(made, "kind", kind)
    return made


@pytest.mark.parametrize("kind", RAISED)
def test_a_message_that_its_class_refuses_fails_alone(shop, office, kind):
    echo = office.remote_spawn(shop.address, "echo")

    asked = [echo.ask(what) for what in ("a", mute(kind), "b")]

    assert (asked[0].result(5), asked[2].result(5)) == ("a", "b")
    with pytest.raises(CallboardError, match=r"tests\.Mute"):
        asked[1].result(5)


@pytest.mark.parametrize("kind", RAISED)
def test_a_message_that_cannot_be_shown_ends_nothing(make_node, kind, caplog):
    node = make_node()
    odd, echo = node.spawn(Odd), node.spawn(Echo)

    def raises(_: object) -> None:
        raise ValueError

    with node.runtime.subscribed(raises):  # so that the event is logged
        odd.tell(Mute())  # no handler takes it
        odd.kill()
        with pytest.raises(ActorDown):
            odd.ask("x").result(5)
        odd.tell(mute(kind))  # a dead letter
        assert echo.ask("a").result(5) == "a"
    eventually(lambda: "a subscriber failed" in caplog.text)


def test_a_dead_letter_that_hides_its_class_holds_up_none_behind_it(make_node):
    node = make_node()
    GATE.clear()
    blocks = node.spawn(Slow)
    blocks.tell(1.0)
    blocks.tell(Hidden())
    asked = blocks.ask(2.0)
    blocks.kill()
    GATE.set()

    with pytest.raises(ActorDown):
        asked.result(5)
    eventually(lambda: node.stats().dead_letters >= 2)


@pytest.fixture
def shop(make_node):
    offer = {"odd": Odd, "echo": Echo, "blocks": Blocks}
    node = make_node("shop", spawnable=offer)
    node.listen()
    GATE.clear()
    yield node
    GATE.set()


@pytest.fixture
def office(make_node, shop):
    node = make_node("office")
    connect(node, shop)
    return node


@pytest.mark.parametrize("kind", RAISED)
def test_a_constructor_that_raises_anything_is_told_and_ends_nothing(shop, office, kind):
    with pytest.raises(RemoteError) as caught:
        office.remote_spawn(shop.address, "odd", kind)

    assert caught.value.type_name == class_name(RAISED[kind]())
    assert office.remote_spawn(shop.address, "echo").ask("alive").result(5) == "alive"
    eventually(lambda: shop.stats().actors == 1)


@pytest.mark.parametrize("kind", RAISED)
@pytest.mark.parametrize("how", [str, lambda kind: [kind], lambda kind: (kind,), "call"])
def test_an_exception_ends_the_actor_that_raised_it_and_its_monitors_fire_once(
    shop, office, kind, how
):
    odd = office.remote_spawn(shop.address, "odd")
    here, there = shop.monitor(shop.runtime.ref_of(*odd._key)), office.monitor(odd)
    asked = odd.call(Odd.call_me, kind) if how == "call" else odd.ask(how(kind))

    with pytest.raises((RemoteError, ActorDown)):
        asked.result(5)

    expected = "normal" if kind == "exit" else "error"
    assert here.result(5).reason == there.result(5).reason == expected
    with pytest.raises(ActorDown):
        odd.ask("again").result(5)
    assert shop.stats().actors == 0


@pytest.mark.parametrize("kind", RAISED)
def test_a_supervisor_outlives_a_child_that_cannot_be_made(make_node, kind):
    node = make_node()
    ends = []

    class Late(Actor):
        made = 0

        def __init__(self) -> None:
            Late.made += 1
            if Late.made == 2:
                raise RAISED[kind]()

    supervisor = node.supervise([Child(Late)], backoff=(0.001, 0.01))
    node.monitor(supervisor).add_done_callback(ends.append)
    [first] = supervisor.call(Supervisor.children).result(5)
    first.kill()

    eventually(lambda: Late.made == 3 and supervisor.call(Supervisor.children).result(5))
    with pytest.raises(RemoteError):
        supervisor.call(Supervisor.add, Child(Odd, kind)).result(5)
    assert ends == []


@pytest.mark.parametrize("kind", RAISED)
def test_a_callback_or_subscriber_that_raises_ends_no_actor(make_node, kind):
    node = make_node()
    echo = node.spawn(Echo)

    def raises(_: object) -> None:
        raise RAISED[kind]()

    with node.runtime.subscribed(raises):
        node.spawn(Echo).kill()
        asked = [echo.ask(text) for text in "abc"]
        for each in asked:
            each.on_done(raises)
        assert [each.result(5) for each in asked] == list("abc")
    assert echo.ask("alive").result(5) == "alive"


def test_a_constructor_that_blocks_holds_up_nobody_else(shop, office):
    echo = shop.spawn(Echo)
    shop.register("echo", echo)
    server = office.runtime.ref_of(shop.node_id, SPAWN_SERVER)
    blocked = [server.ask(BLOCKS, timeout=0.5) for _ in range(3)]

    assert office.remote_spawn(shop.address, "echo").ask("hi").result(5) == "hi"
    assert office.remote_actor(shop.address + "/echo").ask("hi").result(5) == "hi"
    down = office.monitor(echo)
    echo.kill()
    assert down.result(5).reason == "killed"
    for each in blocked:
        with pytest.raises(AskTimeout):
            each.result(5)


def test_constructors_that_block_are_bounded(shop, office):
    server = office.runtime.ref_of(shop.node_id, SPAWN_SERVER)
    blocked = [server.ask(BLOCKS, timeout=30) for _ in range(ERRAND_LIMIT)]
    eventually(lambda: len(shop.runtime.errands) == ERRAND_LIMIT)

    with pytest.raises(NotSpawnable, match="64 constructors"):
        office.remote_spawn(shop.address, "echo")
    GATE.set()
    assert all(each.result(10) for each in blocked)
    assert office.remote_spawn(shop.address, "echo").ask("hi").result(5) == "hi"


def test_a_kill_while_an_actor_is_made_takes_effect_when_it_is_made(shop, office):
    server = office.runtime.ref_of(shop.node_id, SPAWN_SERVER)
    blocked = server.ask(BLOCKS, timeout=30)
    eventually(lambda: shop.runtime.errands)
    [cell] = [cell for cell in shop.runtime.contexts.values() if cell.actor is None]
    ends = []
    cell.monitor("test", ends.append)

    cell.kill()
    GATE.set()

    assert blocked.result(5).actor_id == cell.number
    eventually(lambda: [down.reason for down in ends] == ["killed"])


@pytest.mark.slow
def test_a_node_closes_while_a_constructor_blocks(make_node):
    GATE.clear()
    node = Node("shop", spawnable={"blocks": Blocks})
    node.runtime.ref_of(node.node_id, SPAWN_SERVER).tell(BLOCKS)
    eventually(lambda: node.runtime.errands)

    started = time.monotonic()
    node.close()
    assert time.monotonic() - started < 12
    GATE.set()
