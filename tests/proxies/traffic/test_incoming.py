"""What arrives at a node: answers, errors, asks from everywhere."""

import asyncio
import threading
from dataclasses import dataclass, field, replace

import pytest

from callboard import Actor, handler, message
from callboard.actors.errors import (
    ActorDown,
    AskTimeout,
    NoSuchMethod,
    RemoteError,
    UnexpectedMessage,
)
from callboard.basp.frame import pack_frame
from callboard.basp.header import Operation
from callboard.proxies.events import FramesRefused, LinkDown
from callboard.proxies.link.connector import Connector
from callboard.proxies.traffic import unverified
from tests.proxies.cast import (
    Blocker,
    Echo,
    Forward,
    Later,
    Parcel,
    Replier,
    Sink,
    Size,
    eventually,
    line,
    recorded,
    settled,
)


def test_asks_fail_with_the_error_that_says_why(make_node):
    a, b = make_node("a"), make_node("b")
    line(a, b)
    echo, later = a.ref(str(b.spawn(Echo))), a.ref(str(b.spawn(Later)))

    with pytest.raises(UnexpectedMessage, match="Echo has no handler for float"):
        echo.ask(1.5).result(5)
    with pytest.raises(NoSuchMethod, match="no_such"):
        echo.proxy().no_such().result(5)
    with pytest.raises(NoSuchMethod, match="text"):
        echo.proxy().text("handlers are not methods").result(5)
    with pytest.raises(AskTimeout):
        later.ask("x", timeout=0.05).result(5)
    with pytest.raises(RemoteError) as caught:
        echo.call(Echo.fail, "why").result(5)
    assert (caught.value.type_name, caught.value.text) == ("ValueError", "why")
    assert "in fail" in caught.value.traceback
    with pytest.raises(ActorDown):
        echo.ask("gone").result(5)


def test_a_promise_answers_later_over_hops(four):
    later = four[0].ref(str(four[3].spawn(Later)))

    owed = [later.ask("one"), later.ask("two")]
    assert later.call(Later.count).result(5) == 2
    assert not any(future.done() for future in owed)
    later.tell(0.0)

    assert [future.result(5) for future in owed] == ["ONE", "TWO"]
    settled(*four)


def test_an_owed_answer_fails_when_its_actor_ends(make_node):
    a, b = make_node("a"), make_node("b")
    line(a, b)
    later = a.ref(str(b.spawn(Later)))
    owed = later.ask("never")
    later.call(Later.count).result(5)

    later.stop()

    with pytest.raises(ActorDown) as caught:
        owed.result(5)
    assert caught.value.reason == "normal"


def test_a_reply_sent_to_the_sender_answers_across_nodes(four):
    replier = four[0].ref(str(four[2].spawn(Replier)))

    assert replier.ask("hello").result(5) == "re: hello"


def test_an_actor_that_answers_its_sender_reaches_an_actor_elsewhere(make_node):
    a, b = make_node("a"), make_node("b")
    line(a, b)
    asker = a.spawn(Inbox)
    asker.tell(Forward(a.ref(str(b.spawn(Replier))), "hello"))

    eventually(lambda: asker.call(Inbox.everything).result(5) == ["re: hello"])
    settled(a, b)


class Inbox(Actor):
    def __init__(self) -> None:
        self.seen: list[str] = []

    @handler
    def forward(self, msg: Forward) -> None:
        self.send(msg.to, msg.content)

    @handler
    def text(self, msg: str) -> None:
        self.seen.append(msg)

    def everything(self) -> list[str]:
        return self.seen


def test_threads_ask_at_the_same_time(make_node):
    a, b = make_node("a"), make_node("b")
    line(a, b)
    echo = a.ref(str(b.spawn(Echo)))
    wrong: list[object] = []

    def ask(mark: int) -> None:
        for number in range(100):
            text = f"{mark}.{number}"
            if echo.ask(text).result(10) != text:
                wrong.append(text)

    threads = [threading.Thread(target=ask, args=(mark,)) for mark in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert wrong == []
    settled(a, b)


def test_asyncio_programs_ask(make_node):
    a, b = make_node("a"), make_node("b")
    line(a, b)
    echo = a.ref(str(b.spawn(Echo)))

    async def program() -> list[str]:
        return await asyncio.gather(*(echo.ask(str(number)) for number in range(50)))

    assert asyncio.run(program()) == [str(number) for number in range(50)]


def test_handlers_ask_each_other_back_and_forth(make_node):
    a, b = make_node("a"), make_node("b")
    line(a, b)
    ping, pong = a.spawn(Bouncer), b.spawn(Bouncer)

    assert ping.ask(Forward(a.ref(str(pong)), Parcel("x"))).result(5) == "x"
    assert pong.ask(Forward(b.ref(str(ping)), Parcel("y"))).result(5) == "y"


class Bouncer(Actor):
    @handler
    async def forward(self, msg: Forward) -> object:
        return await msg.to.ask(msg.content)

    @handler
    def parcel(self, msg: Parcel) -> object:
        return msg.content


def test_a_handler_that_blocked_sends_without_delay(make_node, monkeypatch):
    """It lost the runner's role, so the end of a turn does not flush its message.

    Neither does a heartbeat.
    """
    config = Connector.config
    monkeypatch.setattr(
        Connector, "config", lambda *given: replace(config(*given), heartbeat=60.0)
    )
    a, b = make_node("a"), make_node("b")
    line(a, b)
    sink = b.spawn(Sink)
    gate, end = threading.Event(), threading.Event()
    blocker = a.spawn(Blocker, gate, end)
    blocker.tell(Forward(a.ref(str(sink)), 1))
    threading.Event().wait(0.05)

    gate.set()

    # The handler has not returned: it does so after the message has arrived.
    eventually(lambda: sink.ask(Size()).result(30) == 1, seconds=30)
    end.set()


# --- what the receiver does not want ---


@message("tests.proxies.Picky")
@dataclass(frozen=True)
class Picky:
    number: int
    more: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        if Picky.fails:
            raise RuntimeError("not here")


Picky.fails = False


@pytest.mark.parametrize("more", [[], [1]], ids=["flat", "nested"])
def test_a_constructor_that_raises_at_the_receiver_fails_the_ask_and_no_link(
    make_node, monkeypatch, more
):
    a, b = make_node("a"), make_node("b")
    line(a, b)
    echo = a.ref(str(b.spawn(Echo)))
    picky = Picky(1, more)
    monkeypatch.setattr(Picky, "fails", True)

    with recorded(a) as events, pytest.raises(RemoteError, match="RuntimeError: not here"):
        echo.ask(picky).result(5)
    echo.tell(picky)

    assert echo.ask("alive").result(5) == "alive"
    settled(a, b)
    assert a.accounts()[b.node_id].dead_letters == 2
    assert [event for event in events if isinstance(event, LinkDown)] == []


@pytest.mark.slow
def test_frames_of_sources_that_no_path_leads_to_are_refused(make_node, monkeypatch):
    monkeypatch.setattr(unverified, "DOUBTED_LIMIT", 20 * 1024)
    a, b = make_node("a"), make_node("b")
    line(a, b)
    sink = b.spawn(Sink)
    there = a.ref(str(sink))

    with recorded(b) as events:
        for number in range(100):
            forged = (number + 1).to_bytes(18)
            for operation, data, payload in (
                (Operation.DISPATCH_MESSAGE, 0, b"\x81\x01"),
                (Operation.ANNOUNCE_PROXY_INSTANCE, 1, b""),
                (Operation.PATH_END, 1, b""),
            ):
                actor = 0 if operation is Operation.PATH_END else sink.actor_id
                frame = pack_frame(operation, data, forged, b.node_id, 0, actor, payload)
                a._broker.routes.send_to(b.node_id, frame)
        assert there.ask(Size()).result(5) == 0
        assert b.stats().refused_frames in range(280, 290)  # at once, for lack of room
        eventually(lambda: not b._broker.unverified._held)

    assert set(b._broker.routes.accounts.arrivals) == {a.node_id}
    assert set(b._broker.incoming._orders) == {a.node_id}
    assert set(b._broker.lifetimes.holders._held_by) == {a.node_id}
    told = [event for event in events if isinstance(event, FramesRefused)]
    assert told
    assert len(told) < 10
    assert told[0].peer == a.node_id
