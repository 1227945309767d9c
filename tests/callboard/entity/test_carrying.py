"""Messages and answers of one turn go together, and all else is as if they went alone."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard import Actor, Entity, Node, Rights, event, handler, message
from callboard.actors.future import Future
from callboard.basp.errors import MalformedPayload, RemoteProtocolError
from callboard.basp.header import ENTITIES
from callboard.basp.payload import PayloadCodec
from callboard.basp.registry import DEFAULT_REGISTRY
from callboard.entity.machine.table import slot_of
from callboard.entity.messages import EntityMessages
from callboard.errors import AskTimeout, MessageTooLarge, NotSerializable, RemoteError
from callboard.proxies.messages import (
    ANSWER_HEAD,
    CARRIED_LIMIT,
    CARRIER_BOUND,
    CARRIERS,
    CarriedAnswers,
)
from callboard.proxies.traffic.batches import CARRIED_HEAD, Carried
from callboard.proxies.traffic.pending_asks import PendingAsks
from tests.polling import eventually

CODEC = PayloadCodec(DEFAULT_REGISTRY)
U32 = st.integers(0, 2**32 - 1)
#: No payload is empty, so that a head whose body is missing is always one too many.
ITEMS = st.lists(
    st.tuples(
        *(st.integers(1, 2**32 - 1), st.integers(0, 255), U32, U32, U32),
        st.text(st.characters(exclude_categories=("Cs",)), max_size=40),
        st.binary(min_size=1, max_size=60),
    ),
    max_size=20,
)
ANSWERS = st.lists(st.tuples(U32, st.binary(min_size=1, max_size=60)), max_size=20)


def carrying(items: list[Carried], name: str = "shop.Cart") -> EntityMessages:
    heads, keys = b"", b""
    for *fields, key, body in items:
        heads += CARRIED_HEAD.pack(*fields, len(key.encode()), len(body))
        keys += key.encode()
    return EntityMessages(name, heads, keys, b"".join(item[-1] for item in items))


def answering(items: list[tuple[int, bytes]]) -> CarriedAnswers:
    heads = b"".join(ANSWER_HEAD.pack(number, len(body)) for number, body in items)
    return CarriedAnswers(heads, b"".join(body for _, body in items))


@given(ITEMS)
def test_messages_that_are_carried_come_out_as_they_went_in(items: list[Carried]) -> None:
    read: Any = CODEC.decode_message(CODEC.encode(carrying(items)))
    assert read.each() == items


@given(ANSWERS)
def test_answers_that_are_carried_come_out_as_they_went_in(
    items: list[tuple[int, bytes]],
) -> None:
    read: Any = CODEC.decode_message(CODEC.encode(answering(items)))
    assert read.each() == items


@given(ITEMS, st.data())
def test_a_column_of_messages_that_is_cut_short_is_refused(
    items: list[Carried], data: st.DataObject
) -> None:
    whole = carrying(items)
    columns = {name: getattr(whole, name) for name in ("heads", "keys", "bodies")}
    name = data.draw(st.sampled_from(sorted(columns)))
    if columns[name]:
        columns[name] = columns[name][: data.draw(st.integers(0, len(columns[name]) - 1))]
        with pytest.raises(MalformedPayload):
            EntityMessages("shop.Cart", **columns).each()


@given(ANSWERS, st.data())
def test_a_column_of_answers_that_is_cut_short_is_refused(
    items: list[tuple[int, bytes]], data: st.DataObject
) -> None:
    whole = answering(items)
    columns = {"heads": whole.heads, "bodies": whole.bodies}
    name = data.draw(st.sampled_from(sorted(columns)))
    if columns[name]:
        columns[name] = columns[name][: data.draw(st.integers(0, len(columns[name]) - 1))]
        with pytest.raises(MalformedPayload):
            CarriedAnswers(**columns).each()


@given(*(st.one_of(st.binary(max_size=90), st.text(max_size=3), st.none()) for _ in range(3)))
def test_garbage_in_columns_raises_nothing_else(heads: Any, keys: Any, bodies: Any) -> None:
    for carrier in (
        EntityMessages("shop.Cart", heads, keys, bodies),
        CarriedAnswers(heads, bodies),
    ):
        try:
            found = carrier.each()
        except MalformedPayload:
            continue
        size = ANSWER_HEAD.size if isinstance(carrier, CarriedAnswers) else CARRIED_HEAD.size
        assert len(found) == len(heads) // size


DAMAGE = st.lists(
    st.tuples(st.integers(0, 2**16), st.integers(0, 8), st.binary(max_size=8)),
    min_size=1,
    max_size=4,
)


@given(st.one_of(ITEMS.map(carrying), ANSWERS.map(answering)), DAMAGE)
def test_a_damaged_carrier_is_refused_or_holds_what_its_columns_say(
    carrier: EntityMessages | CarriedAnswers, damage: list[tuple[int, int, bytes]]
) -> None:
    payload = CODEC.encode(carrier)
    for place, removed, added in damage:
        at = place % (len(payload) + 1)
        payload = payload[:at] + added + payload[at + removed :]
    try:
        read: Any = CODEC.decode_message(payload)
        found = read.each() if isinstance(read, EntityMessages | CarriedAnswers) else None
    except RemoteProtocolError:
        return
    if found is not None:
        again: Any = carrying(found) if isinstance(read, EntityMessages) else answering(found)
        columns = ("heads", "bodies", *(["keys"] * isinstance(read, EntityMessages)))
        for column in columns:
            assert getattr(again, column) == getattr(read, column)


def test_more_than_any_node_sends_together_is_not_even_looked_at() -> None:
    full = CARRIER_BOUND // CARRIED_HEAD.size
    head = CARRIED_HEAD.pack(1, 1, 0, 0, 0, 0, 0)
    assert len(EntityMessages("shop.Cart", head * full, b"", b"").each()) == full
    answers = CARRIER_BOUND // ANSWER_HEAD.size
    assert len(CarriedAnswers(bytes(CARRIER_BOUND), b"").each()) == answers
    for carrier in (
        EntityMessages("shop.Cart", head * (full + 1), b"", b""),
        EntityMessages("shop.Cart", head, bytes(CARRIER_BOUND), b""),
        CarriedAnswers(bytes(CARRIER_BOUND + 8), b""),
    ):
        with pytest.raises(MalformedPayload, match="the limit is 65,536 B"):
            carrier.each()


def test_a_message_without_an_id_is_refused() -> None:
    with pytest.raises(MalformedPayload, match="without an id"):
        carrying([(1, 1, 0, 0, 0, "k", b"x"), (0, 1, 0, 0, 0, "k", b"x")]).each()


def test_an_answer_that_would_go_alone_is_not_carried() -> None:
    with pytest.raises(MalformedPayload, match="the limit is 4,096 B"):
        answering([(1, bytes(CARRIED_LIMIT + 1))]).each()


@message("carrying-tests.Add")
@dataclass(frozen=True)
class Add:
    number: int


@message("carrying-tests.Box")
@dataclass(frozen=True)
class Box:
    content: Any


class Line(Entity):
    """Keeps numbers in the order in which they come."""

    name = "carrying-tests.Line"

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self._later: list[Any] = []

    @handler
    def on_add(self, msg: Add) -> int:
        self.persist(msg)
        return len(self.numbers)

    @event
    def on_added(self, added: Add) -> None:
        self.numbers.append(added.number)

    @handler
    def on_box(self, msg: Box) -> Any:
        if msg.content == "fail":
            raise ValueError(msg.content)
        if msg.content == "later":
            self._later.append(self.promise())
        elif msg.content == "now":
            for promise in self._later:
                for answer in ("first", "second"):  # what comes second is no answer
                    promise.set_result(answer)
        return msg.content * 2

    @handler(read_only=True)
    def on_text(self, _: str) -> list[int]:
        return self.numbers


@message("carrying-tests.Burst")
@dataclass(frozen=True)
class Burst:
    keys: int
    each: int


class Client(Actor):
    """Sends many messages in one turn."""

    @handler
    async def on_burst(self, burst: Burst) -> list[int]:
        assert self.node is not None
        refs = [self.node.entity(Line, f"k-{key}") for key in range(burst.keys)]
        for number in range(burst.each - 1):
            for ref in refs:
                (ref.tell if number % 3 else ref.ask)(Add(number))
        return [await answer for answer in [ref.ask(Add(burst.each - 1)) for ref in refs]]

    @handler
    async def on_contents(self, contents: list) -> list[Any]:  # type: ignore[type-arg]
        assert self.node is not None
        ref = self.node.entity(Line, "k")
        answers = [ref.ask(Box(each), timeout=20) for each in contents]
        outcomes: list[Any] = []
        for answer in answers:
            try:
                outcomes.append(await answer)
            except Exception as error:  # noqa: BLE001 - what is looked at
                outcomes.append(type(error).__name__)
        return outcomes

    @handler
    async def on_unfit(self, _: float) -> str:
        assert self.node is not None
        ref = self.node.entity(Line, "k")
        before = ref.ask(Box(1))
        unfit = ref.ask(Box(object()))
        try:
            await unfit
        except NotSerializable as error:
            assert await before == 2
            return str(error)
        return ""


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[tuple[Node, Node]]:
    with ExitStack() as stack:
        host, client = (stack.enter_context(Node(name)) for name in ("host", "client"))
        host.listen("127.0.0.1", 0)
        client.connect(host.address)
        host.host(Line, state=f"sqlite:{tmp_path}/state.db")
        yield host, client


def frames_between(a: Node, b: Node) -> int:
    return sum(
        node._routes.wires[other.node_id].frames_sent for node, other in ((a, b), (b, a))
    )


def burst(client: Node, keys: int, each: int) -> None:
    ref = client.spawn(Client)
    assert ref.ask(Burst(keys, each), timeout=30).result(30) == [each] * keys
    for key in range(keys):
        line = client.entity(Line, f"k-{key}").ask("all").result(10)
        assert line == list(range(each))


def test_messages_of_one_turn_go_together_in_their_order(nodes: tuple[Node, Node]) -> None:
    host, client = nodes
    client.entity(Line, "k-0").ask("all").result(10)
    before = frames_between(host, client)
    burst(client, keys=30, each=10)
    # 300 messages with an answer each, and 30 asks of this thread, which go alone.
    assert frames_between(host, client) - before < 250
    eventually(lambda: not client._broker.outgoing.asks.count)


def test_a_node_of_an_earlier_release_gets_them_one_by_one(nodes: tuple[Node, Node]) -> None:
    host, client = nodes
    abilities = client._routes.abilities
    assert CARRIERS in abilities[host.node_id]
    abilities[host.node_id] -= {CARRIERS}
    client.entity(Line, "k-0").ask("all").result(10)
    before = frames_between(host, client)
    burst(client, keys=30, each=10)
    assert frames_between(host, client) - before >= 600


def test_large_messages_and_failures_keep_their_place(nodes: tuple[Node, Node]) -> None:
    client = nodes[1].spawn(Client)
    contents = ["a", "x" * 9_000, "b", "fail", 7, "y" * 100_000, "c", "z" * 3_000]
    expected = [each if each == "fail" else each * 2 for each in contents]
    expected[3] = RemoteError.__name__
    assert client.ask(contents, timeout=30).result(30) == expected


def test_an_answer_that_comes_later_comes_once(nodes: tuple[Node, Node]) -> None:
    client = nodes[1].spawn(Client)
    contents = ["a", "later", "b", "later", "now", "now", "c"]
    expected = ["aa", "first", "bb", "first", "nownow", "nownow", "cc"]
    assert client.ask(contents, timeout=30).result(30) == expected


def test_a_slot_that_was_refused_holds_up_no_other_one(nodes: tuple[Node, Node]) -> None:
    host, client = nodes
    for key in range(5):
        client.entity(Line, f"k-{key}").ask("all").result(10)
    refused = {slot_of("k-0"): 2}  # as if it had been another node's
    host._entities._inbound._refused[bytes(client.node_id), Line.name] = refused
    burst(client, keys=5, each=10)
    assert not refused, "it was sent again, and taken"


def test_what_cannot_travel_fails_alone(nodes: tuple[Node, Node]) -> None:
    text = nodes[1].spawn(Client).ask(0.5, timeout=30).result(30)
    assert "object" in text


def test_a_message_that_no_node_takes_is_refused_by_its_size(nodes: tuple[Node, Node]) -> None:
    contents = ["a", "x" * (17 << 20), "b"]
    client = nodes[1].spawn(Client)
    assert client.ask(contents, timeout=30).result(30) == ["aa", MessageTooLarge.__name__, "bb"]


def test_a_carrier_that_is_broken_is_refused_as_a_whole(nodes: tuple[Node, Node]) -> None:
    host, client = nodes
    ref = client.runtime.ref_of(host.node_id, ENTITIES)
    cut = EntityMessages(Line.name, b"x", b"", b"")
    assert "columns" in str(ref.ask(cut).exception(10))
    assert "name of an entity type" in str(
        ref.ask(EntityMessages("a/b", b"", b"", b"")).exception(10)
    )
    assert client.entity(Line, "k").ask("all").result(10) == []


def test_each_of_what_is_carried_is_looked_at(nodes: tuple[Node, Node]) -> None:
    host, client = nodes
    outgoing = client._broker.outgoing
    proxy: Any = client.runtime.ref_of(host.node_id, ENTITIES)
    futures: list[Future[Any]] = [Future() for _ in range(4)]
    add = CODEC.encode(Add(5))
    bodies = [("k", add, 1_000), ("", add, 1_000), ("k", b"\xff", 1_000), ("k", add, 0)]
    with outgoing.lock:
        items = [
            (outgoing.asks.add(asker, host.node_id), 1, 0, 0, left, key, body)
            for asker, (key, body, left) in zip(futures, bodies, strict=True)
        ]
        outgoing.batches.send_asks(proxy.target, carrying(items, Line.name), futures)
    assert futures[0].result(10) == 1
    assert "1 to 256 bytes" in str(futures[1].exception(10))
    assert isinstance(futures[2].exception(10), RemoteError)
    assert isinstance(futures[3].exception(10), AskTimeout)


def test_what_carries_messages_is_not_for_leaves(tmp_path: Path) -> None:
    with ExitStack() as stack:
        may = {"till": Rights(entities=[Line.name])}
        host = stack.enter_context(Node("host", secrets={"till": "s1"}, permissions=may))
        leaf = stack.enter_context(Node("leaf", secret="s1"))
        host.listen("127.0.0.1", 0)
        leaf.connect(host.address)
        host.host(Line, state=f"sqlite:{tmp_path}/state.db")
        assert CARRIERS not in leaf._routes.abilities[host.node_id]
        assert CARRIERS not in host._routes.abilities[leaf.node_id]
        burst(leaf, keys=5, each=6)
        ref = leaf.runtime.ref_of(host.node_id, ENTITIES)
        error = ref.ask(EntityMessages(Line.name, b"", b"", b"")).exception(10)
        assert "limited rights" in str(error)


class Again:
    """An asker that sends its message again, by another id, when the first owner refuses it."""

    message_id = 0
    is_done = False
    deadline = None

    def __init__(self) -> None:
        self.errors: list[BaseException] = []

    def set_exception(self, error: BaseException) -> bool:
        self.errors.append(error)
        return True


def test_a_lost_node_fails_no_message_that_went_to_another_one_since() -> None:
    stays, goes_again = Again(), Again()
    asks = PendingAsks(lambda _: None)
    first, second = asks.add(stays, b"a"), asks.add(goes_again, b"a")
    del asks.by_id[second]  # refused, and on its way to the next owner
    third = asks.add(goes_again, b"b")
    asks.fail_asks((first, second), AskTimeout("lost"))
    assert (len(stays.errors), len(goes_again.errors)) == (1, 0)
    assert list(asks.by_id) == [third]


def test_a_batch_is_known_to_its_node_until_its_asks_are_answered() -> None:
    asks = PendingAsks(lambda _: None)
    ids = asks.add(Again(), b"a"), asks.add(Again(), b"a")
    batch, other = asks.add_batch(ids, b"a"), asks.add_batch(ids[1:], b"a")
    del asks.by_id[ids[1]]
    asks.forget_done()
    assert list(asks.batches) == [batch] != [other]
    assert asks.pop_batch(batch, b"b") is None
    assert asks.pop_batch(batch, b"a") == ids
    assert asks.pop_batch(batch, b"a") is None
