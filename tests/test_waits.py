"""Nothing waits for ever on a node that is closed.

Each public method that returns a future, a coroutine or an async iterator stands in a table
here: with what makes it wait, or with the reason why it needs none. A method without an entry
fails the test, so that its author says how it ends.
"""

import ast
import asyncio
import inspect
import socket
import threading
import time
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest

import callboard
from callboard import (
    Actor,
    ActorRef,
    Endpoint,
    Entity,
    Group,
    Journal,
    LogWriter,
    Mailbox,
    Node,
    QueueJob,
    Stream,
    StreamQuery,
    Worker,
    WorkerPool,
    WorkQueue,
    errors,
    event,
    handler,
    message,
)
from callboard.broker.publisher import Publisher
from callboard.broker.subscriber import StatusSubscriber, Subscriber
from callboard.commitlog.following.follower import Follower
from callboard.commitlog.following.named import NamedReader
from callboard.flow.flow import Flow
from callboard.gateway import Gateway
from callboard.mqtt.service.router import Router
from callboard.mqtt.wire.errors import LinkClosed
from callboard.store.store import Store, StoreProxy
from callboard.support.dataclass import dataclass
from callboard.topics.input_queue import InputQueue
from tests.sources import mentioning

#: Seconds from the close of a node within which every wait has to end. Most end in
#: milliseconds; the limit only tells a wait that ends from one that does not.
END_SECONDS = 20.0

ROOT = Path(callboard.__file__).parent


class Unhosted(Entity):
    """An entity that no node hosts."""

    name = "waits.Unhosted"


@message("waits.Kept")
@dataclass(frozen=True)
class Kept:
    number: int


class Keeps(Entity):
    """An entity with a journal."""

    name = "waits.Keeps"

    @handler
    def on_number(self, msg: int) -> None:
        self.persist(Kept(msg))

    @event
    def kept(self, kept: Kept) -> None:
        pass


@message("waits.Numbers")
@dataclass(frozen=True)
class Numbers(StreamQuery[int]):
    pass


class Silent(Actor):
    """Takes a promise and never answers."""

    def __init__(self) -> None:
        self.promises: list[object] = []

    @handler
    def keep(self, msg: object) -> None:
        self.promises.append(self.promise())

    async def called(self) -> None:
        await self.sleep(1_000)

    @handler
    async def numbers(self, msg: Numbers) -> AsyncIterator[int]:
        await self.sleep(1_000)
        yield 1


class Full(Actor):
    """Handles its first message for ever; a second one fills its mailbox."""

    mailbox = Mailbox(limit=1)

    @handler
    async def wait(self, msg: object) -> None:
        await self.sleep(1_000)


class World:
    """A node with everything that can wait on it, and another node whose parts never answer."""

    def __init__(self, folder: Path) -> None:
        state = f"sqlite:{folder}/state.db"
        self.other, self.node = Node("other"), Node("closed")
        self.other.listen()
        self.node.connect(self.other.address)
        # A peer that accepts a connection and never says a word.
        self.mute = socket.create_server(("127.0.0.1", 0))
        self.mute_address = f"basp://127.0.0.1:{self.mute.getsockname()[1]}"
        self.other.queue("jobs", state=state)
        self.queue = self.node.queue("jobs")
        self.silent = self.node.ref(str(self.other.spawn(Silent)))
        self.here = self.node.spawn(Silent)
        full = self.other.spawn(Full)
        for number in range(2):
            full.target.post(number)
        self.full = self.node.ref(str(full))
        self.group = self.node.group("silent")
        self.group.join(self.here)
        self.full_group = self.node.group("full")
        self.full_group.join(self.full)
        self.other.host(Keeps, state=state)
        self.follow = partial(self.node.journal, Keeps, state=state, follow=True)
        self.endpoint = Endpoint(node=self.node)
        self.clone = self.endpoint.attach_clone("masterless")
        self.subscriber = self.endpoint.make_subscriber(["nothing"])
        self.notices = self.endpoint.make_status_subscriber()
        self.proxy = self.clone.proxy()

    def close(self) -> None:
        self.endpoint.shutdown()
        self.other.close()
        self.mute.close()


#: What makes each method wait on `World.node`.
WAITS = {
    "Node.aconnect": lambda w: w.node.aconnect(w.mute_address, 1_000),
    "Node.aremote_actor": lambda w: w.node.aremote_actor(f"{w.mute_address}/x", 1_000),
    "Node.aremote_spawn": lambda w: w.node.aremote_spawn(w.mute_address, "x"),
    "Node.aspawn": lambda w: w.node.aspawn(Silent, on=w.mute_address),
    "Node.events": lambda w: read_all(w.node.events()),
    "Node.watch": lambda w: read_all(w.node.watch("nobody")),
    "Node.monitor": lambda w: w.node.monitor(w.silent),
    "Node.monitor_node": lambda w: w.node.monitor_node(w.other.node_id),
    "Stream.__aiter__": lambda w: read_all(w.silent.stream(Numbers())),
    "Stream.__anext__": lambda w: anext(w.silent.stream(Numbers())),
    "Group.aask": lambda w: w.group.aask("x", None),
    "Group.ask": lambda w: w.group.ask("x", None),
    "Group.ask_all": lambda w: w.group.ask_all("x", None)[0],
    "Group.atell": lambda w: tell_many(w.full_group),
    "Group.call": lambda w: w.group.call(Silent.called),
    "Group.map": lambda w: w.group.map(["x", "y"], timeout=None)._all(),
    "Group.ready": lambda w: w.group.ready(5),
    "ActorRef.aask": lambda w: w.silent.aask("x", None),
    "ActorRef.ask": lambda w: w.node.entity(Unhosted, "k").ask("x", None),
    "ActorRef.astop": lambda w: w.full.astop(),
    "ActorRef.atell": lambda w: tell_many(w.full),
    "ActorRef.call": lambda w: w.here.call(Silent.called),
    "WorkQueue.take": lambda w: w.queue.take(),
    "Journal.__anext__": lambda w: anext(w.follow()),
    "Journal.anext_page": lambda w: w.follow().anext_page(),
    "Endpoint.aawait_peer": lambda w: w.endpoint.aawait_peer(PEER, 1_000),
    "Endpoint.aawait_filter_entry": lambda w: w.endpoint.aawait_filter_entry("f", 1_000),
    "Endpoint.apeer": lambda w: w.endpoint.apeer(*w.mute.getsockname(), 1.0),
    "Subscriber.__aiter__": lambda w: read_all(w.subscriber),
    "Subscriber.aget": lambda w: w.subscriber.aget(3),
    "StatusSubscriber.__aiter__": lambda w: read_all(w.notices),
    "StatusSubscriber.aget": lambda w: w.notices.aget(),
    "Store.aget": lambda w: w.clone.aget("key"),
    "Store.aput_unique": lambda w: w.clone.aput_unique("key", 1),
    "Store.ask_unique": lambda w: w.clone.ask_unique("other", 1),
    "Store.aawait_idle": lambda w: w.clone.aawait_idle(1_000),
    "Store.watch": lambda w: read_all(w.clone.watch()),
    "StoreProxy.areceive": lambda w: w.proxy.areceive(),
}

PEER = "00000000-0000-4000-8000-000000000000"

#: Methods that need none, and why.
_CLOSES = "it is what closes something"
_COMMAND = "it waits for room or a turn as the method that the table has, Store.aget"
_REPEATED = (
    "a request of a queue: test_a_request_of_a_queue_without_an_owner_ends_with_its_node"
)
NO_WAIT = {
    "Node.aclose": _CLOSES,
    "Node.adrain": _CLOSES,
    "Node.find": "an ask with a deadline, which every close fails",
    "Node.find_all": "an ask with a deadline, which every close fails",
    "Node.ahost": "within Shutdown.ending, as Node.aconnect",
    "Node.achange_secrets": "one step on the node's thread, guarded",
    "Node.aparked_reminders": "within Shutdown.ending, as Node.aconnect",
    "Node.astart_reminders": "within Shutdown.ending, as Node.aconnect",
    "Node.aqueue": "within Shutdown.ending, as Node.aconnect",
    "Node.asingleton": "within Shutdown.ending, as Node.aconnect",
    "Node.aworkers": "within Shutdown.ending, as Node.aconnect",
    **dict.fromkeys(
        [
            *("WorkQueue.acknowledge", "WorkQueue.ask", "WorkQueue.ask_taken"),
            *("WorkQueue.dead", "WorkQueue.discard", "WorkQueue.put", "WorkQueue.requeue"),
            *("WorkQueue.stats", "QueueJob.ack", "QueueJob.extend", "QueueJob.nack"),
        ],
        _REPEATED,
    ),
    "Actor.sleep": "awaited in a handler, which ends with its node",
    "Journal.aclose": _CLOSES,
    "Journal.adone": "Node._start, as Journal.anext_page",
    "Journal.ato_log": "iterates the journal on a thread, as Journal.anext_page",
    "LogWriter.aappend": "has a time of its own; see tests/callboard/log_service",
    "LogWriter.append_soon": "has a time of its own; see tests/callboard/log_service",
    "LogWriter.relink": "called by the linker of the writer, an actor",
    "WorkerPool.aclose": _CLOSES,
    "WorkerPool.adrain": _CLOSES,
    "WorkerPool.aspawn": "Runtime.in_time, or an ask with a deadline",
    "WorkerPool.aspawn_each": "asks with deadlines",
    "WorkerPool.started": "Runtime.in_time",
    "Worker.aspawn": "fails when the process ends, which closing its node waits for",
    "Endpoint.aclose": _CLOSES,
    "Stream.aclose": "tells the generator, and waits for no answer",
    "Endpoint.ashutdown": _CLOSES,
    "Endpoint.aattach_master": "opens a file on a thread",
    "Endpoint.aconnect_web_socket": "has a time of its own, on a thread",
    "Endpoint.apublish": "InputQueue.room, which is guarded; guarded",
    "Endpoint.apublish_batch": "InputQueue.room, which is guarded; guarded",
    "Endpoint.apublish_journal": "iterates a journal on a thread, as Journal.anext_page",
    "Endpoint.arecord": "opens a log on a thread",
    "Endpoint.aunpeer": "CoreWaits.begin, as Endpoint.apeer",
    "Publisher.aclose": _CLOSES,
    "Publisher.apublish": "InputQueue.room, which is guarded; guarded",
    "Publisher.apublish_batch": "InputQueue.room, which is guarded; guarded",
    "Subscriber.aclose": _CLOSES,
    "Subscriber.aadd_topic": "an ask with a deadline, which every close fails",
    "Subscriber.aremove_topic": "an ask with a deadline, which every close fails",
    "StatusSubscriber.aclose": _CLOSES,
    "Store.aclose": _CLOSES,
    **dict.fromkeys(
        [
            *("Store.aappend", "Store.aclear", "Store.adecrement", "Store.aerase"),
            *("Store.aexists", "Store.aget_index_from_value", "Store.aincrement"),
            *("Store.ainsert_into", "Store.akeys", "Store.apop", "Store.apush"),
            *("Store.aput", "Store.aremove_from"),
        ],
        _COMMAND,
    ),
    "Flow.__aiter__": "Flow.aget",
    "Flow.aclose": _CLOSES,
    "Flow.aconnect": "has a time of its own",
    "Flow.aeot": "the link fails with its node",
    "Flow.aget": "the link fails with its node",
    "Flow.aopen": "the link fails with its node",
    "Flow.aput": "the link fails with its node",
    "Follower.__aiter__": "a log of this machine belongs to no node",
    "Follower.aread": "a log of this machine belongs to no node",
    "NamedReader.__aiter__": "a log of this machine belongs to no node",
    "NamedReader.aread": "a log of this machine belongs to no node",
    "Gateway.aclose": _CLOSES,
    "Gateway.aremove_module": "has a time of its own, on a thread",
    "Gateway.asettle": "has a time of its own, on a thread",
    "Gateway.astart": "modules start on their own threads",
}

CLASSES = (
    *(Node, Group, ActorRef, Actor, WorkQueue, QueueJob, Journal, LogWriter, WorkerPool),
    *(Worker, Endpoint, Publisher, Subscriber, StatusSubscriber, Store, StoreProxy, Flow),
    *(Follower, NamedReader, Gateway, Stream),
)

#: What a method's annotation says of one that may wait.
AWAITED = (
    "Future",
    "Feed[",
    "Items[",
    "AsyncIterator",
    "AsyncGenerator",
    "Awaitable",
    "Answers",
)


def may_wait(cls, name):
    """Return whether a public method returns something to be awaited or iterated."""
    if name.startswith("_") and name not in ("__aiter__", "__anext__", "__await__"):
        return False
    method = inspect.getattr_static(cls, name)
    method = getattr(method, "__func__", method)
    if not inspect.isfunction(method):
        return False
    returned = str(inspect.get_annotations(method).get("return", ""))
    return (
        inspect.iscoroutinefunction(method)
        or inspect.isasyncgenfunction(method)
        or any(word in returned for word in AWAITED)
    )


def waiting_methods():
    return {
        f"{cls.__name__}.{name}"
        for cls in CLASSES
        for name in dir(cls)
        if hasattr(cls, name) and may_wait(cls, name)
    }


def test_every_public_method_that_waits_is_in_a_table():
    listed = WAITS.keys() | NO_WAIT.keys()
    assert waiting_methods() - listed - {"Journal.__aiter__"} == set(), "say how these end"
    assert listed - waiting_methods() == set(), "these are no methods that wait"
    assert not WAITS.keys() & NO_WAIT.keys()


def test_every_public_class_with_methods_that_wait_is_looked_at():
    facade = [getattr(callboard, name) for name in callboard.__all__]
    waiting = {
        cls.__name__
        for cls in facade
        if inspect.isclass(cls) and not issubclass(cls, Actor)  # their handlers end with them
        if any(may_wait(cls, name) for name in dir(cls) if hasattr(cls, name))
    }
    assert waiting - {cls.__name__ for cls in CLASSES} == {"Future"}  # what is waited for


async def read_all(items):
    return [item async for item in items]


async def tell_many(ref):
    """Tell more than a full mailbox gives room, or credit, for."""
    for number in range(2_000):
        await ref.atell(number)


async def outcome(wait):
    try:
        return await wait
    except Exception as error:  # noqa: BLE001 - it is what is looked at
        return error


def test_every_wait_ends_when_its_node_is_closed(tmp_path):
    world = World(tmp_path)

    async def main():
        waits = {
            name: asyncio.ensure_future(outcome(begin(world))) for name, begin in WAITS.items()
        }
        # Long enough for whatever does not wait to be done.
        await asyncio.wait(waits.values(), timeout=1.0, return_when=asyncio.FIRST_COMPLETED)
        at_once = {name: wait.result() for name, wait in waits.items() if wait.done()}
        begun = time.monotonic()
        await world.node.aclose()
        await asyncio.wait(waits.values(), timeout=END_SECONDS - (time.monotonic() - begun))
        for_ever = [name for name, wait in waits.items() if not wait.done()]
        for wait in waits.values():
            wait.cancel()
        return at_once, for_ever, {n: w.result() for n, w in waits.items() if w.done()}

    try:
        at_once, for_ever, outcomes = asyncio.run(main())
    finally:
        world.close()
    assert at_once == {}
    assert for_ever == []
    lost = {name: end for name, end in outcomes.items() if isinstance(end, errors.AskTimeout)}
    assert lost == {}
    for name in ("Group.ready", "WorkQueue.take", "ActorRef.ask"):
        assert isinstance(outcomes[name], errors.NodeClosed), (name, outcomes[name])


def test_a_request_of_a_queue_without_an_owner_ends_with_its_node():
    node = Node("alone")
    queue = node.queue("ownerless")
    job = QueueJob(queue, "token", 1, 1, None)
    waits = {
        "put": queue.put(1),
        "put behind it": queue.put(2),
        "ack": job.ack(),
        "nack": job.nack(),
        "extend": job.extend(1.0),
        "stats": queue.stats(),
        "dead": queue.dead(),
        "requeue": queue.requeue(),
        "discard": queue.discard(1),
        "take": queue.take(),
        "take in time": queue.take(timeout=1_000),
    }
    node.close()
    outcomes = {name: wait.exception(END_SECONDS) for name, wait in waits.items()}
    assert {name: type(error) for name, error in outcomes.items()} == dict.fromkeys(
        waits, errors.NodeClosed
    )
    late = (queue.put(3), queue.take(), queue.stats())
    assert [type(wait.exception(END_SECONDS)) for wait in late] == [errors.NodeClosed] * 3


def test_a_publisher_that_waits_for_room_ends_with_its_node(monkeypatch):
    node = Node("full")
    endpoint = Endpoint(node=node)
    monkeypatch.setattr(InputQueue, "has_room", lambda _: False)
    room = endpoint.hub.inputs.room()
    assert not room.done()
    node.close()
    assert isinstance(room.exception(END_SECONDS), errors.NodeClosed)


def test_blocking_waits_end_with_their_node_too():
    node = Node("blocking")
    queue, group = node.queue("ownerless"), node.group("nobody")
    endpoint = Endpoint(node=node)
    subscriber = endpoint.make_subscriber(["nothing"])
    outcomes = {}

    def wait(name, call):
        try:
            outcomes[name] = call()
        except Exception as error:  # noqa: BLE001 - it is what is looked at
            outcomes[name] = type(error)

    calls = {
        "take": lambda: queue.take().result(),
        "ready": lambda: group.ready().result(),
        "get": subscriber.get,
        "connect": lambda: node.connect("basp://127.0.0.1:1", 1_000),
    }
    threads = [
        threading.Thread(target=wait, args=entry, daemon=True) for entry in calls.items()
    ]
    for thread in threads:
        thread.start()
    node.close()
    for thread in threads:
        thread.join(END_SECONDS)
    assert outcomes.pop("connect") in (errors.NodeClosed, errors.NodeUnreachable)
    assert outcomes == {"take": errors.NodeClosed, "ready": errors.NodeClosed, "get": EOFError}


@pytest.mark.parametrize("phase", ["draining", "closed"])
def test_a_taker_ends_when_its_node_drains_or_closes(tmp_path, phase):
    with Node("owner") as owner:
        owner.listen()
        jobs = owner.queue("jobs", state=f"sqlite:{tmp_path}/jobs.db")
        node = Node("taker")
        node.connect(owner.address)
        take = node.queue("jobs").take()
        if phase == "draining":
            report = node.drain(10)
            assert report.is_clean
            assert report.seconds < 9
        else:
            node.close()
        assert isinstance(take.exception(END_SECONDS), errors.NodeClosed)
        jobs.put("next").result(END_SECONDS)
        job = jobs.take().result(END_SECONDS)
        assert (job.value, job.attempt) == ("next", 1)


#: Async generators that programs do not iterate: bodies of responses of the dashboard, which
#: end with the connection.
GENERATORS = {
    "dashboard/app.py": {"events"},
    "dashboard/streams.py": {"_follow", "_listen"},
}


def generators(tree):
    """Return the names of the async generators in a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.AsyncFunctionDef):
            inner = [
                part
                for part in ast.walk(node)
                if isinstance(part, ast.AsyncFunctionDef | ast.FunctionDef | ast.Lambda)
                and part is not node
            ]
            hidden = {id(part) for function in inner for part in ast.walk(function)}
            if any(
                isinstance(part, ast.Yield) and id(part) not in hidden
                for part in ast.walk(node)
            ):
                yield node


def test_no_public_iterator_is_an_async_generator():
    """One ends for good when a wait inside it is cancelled; see callboard.support.items."""
    found = {}
    for path, tree in mentioning(ROOT, "yield"):
        place = str(path.relative_to(ROOT))
        if place.startswith(("simulation/", "demo/")):
            continue
        names = {
            node.name
            for node in generators(tree)
            if not any("contextmanager" in ast.dump(each) for each in node.decorator_list)
        }
        names -= GENERATORS.get(place, set())
        if names:
            found[place] = names
    assert found == {}


def test_a_client_of_a_router_in_this_process_ends_with_the_node_of_the_router():
    node = Node("router")
    router = Router(node=node)
    router.start()
    link = router.link("client")
    assert link.connected.result(END_SECONDS) is False
    outcome = []

    def receive():
        with pytest.raises(LinkClosed) as raised:
            link.recv()
        outcome.append(str(raised.value))

    thread = threading.Thread(target=receive, daemon=True)
    thread.start()
    node.close()
    thread.join(END_SECONDS)
    assert outcome == ["the node router was closed"]
