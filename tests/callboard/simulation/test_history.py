"""What is recorded, by hand and from asks and stores, with its begin and end."""

import pytest

from callboard import Actor, handler
from callboard.broker import Endpoint
from callboard.simulation import Counter, History, NotLinearizable, Register, linearizable


class Total(Actor):
    """Adds without thinking, or with a pause in the middle."""

    def __init__(self):
        self.total = 0

    @handler
    def on_number(self, msg: int) -> int:
        self.total += msg
        return self.total

    @handler(concurrent=True)
    async def on_text(self, msg: str) -> int:
        seen = self.total
        await self.sleep(0.01)
        self.total = seen + int(msg)
        return self.total

    @handler
    def on_bytes(self, msg: bytes) -> int:
        raise ValueError(msg)


def test_asks_begin_when_they_are_asked_and_end_with_their_answers(cluster):
    a, b = cluster(2)
    total = b.ref(str(a.spawn(Total)))
    history = cluster.history()
    before = cluster.now

    history.ask(total, 2, key="total", operation="add")
    assert str(history.operations[0]) == "add 2 -> ?"
    cluster.advance(1.0)

    (done,) = history.operations
    assert (done.client, done.name, done.key, done.answer) == ("b", "add", "total", 2)
    assert (done.outcome, str(done)) == ("answered", "add 2 -> 2")
    assert before == done.begin < done.end < before + 1.0


def test_a_lost_update_is_found(cluster):
    a, b, c = cluster(3, topology="mesh")
    total = a.spawn(Total)
    history = cluster.history()
    for node in (b, c):
        for _ in range(3):
            history.ask(node.ref(str(total)), "1", key="total", operation="add", value=1)
    cluster.advance(10.0)

    with pytest.raises(NotLinearizable) as failure:
        history.check(linearizable(Counter()))

    assert str(failure.value).count("add 1 -> 1") == 2


def test_an_ask_whose_node_is_lost_may_have_happened(cluster):
    a, b = cluster(2)
    total = b.ref(str(a.spawn(Total)))
    history = cluster.history()

    cluster.kill(a)
    history.ask(total, 1, operation="add")
    cluster.advance(60.0)

    assert [each.outcome for each in history.operations] == ["unknown"]
    history.check(linearizable(Counter()))


def test_an_error_says_that_nothing_happened_only_if_the_test_says_so(cluster):
    (a,) = cluster(1)
    total = a.spawn(Total)
    history = cluster.history()

    history.ask(total, b"", operation="add")
    history.ask(total, b"", operation="add", refused=Exception)
    history.ask(total, 1, operation="add").cancel()
    cluster.advance(1.0)

    assert [each.outcome for each in history.operations] == ["unknown", "failed", "unknown"]


def test_blocks_are_recorded():
    history = History(lambda: 1.5)

    with history.operation("write", 3, key="k", client="c") as write:
        write.answer = "ok"
    with pytest.raises(KeyError), history.operation("write", 4):
        raise KeyError
    with pytest.raises(KeyError), history.operation("write", 5, refused=LookupError):
        raise KeyError

    assert [each.outcome for each in history.operations] == ["answered", "unknown", "failed"]
    assert str(history.operations[0]) == "write 3 -> 'ok'"
    assert history.operations[0].end == 1.5


def test_an_operation_ends_once():
    history = History()
    begun = history.begin("read")
    history.answered(begun, 1)

    for end in (history.answered, history.unknown, history.failed):
        with pytest.raises(ValueError, match="end each operation once"):
            end(begun)


def test_stores_are_recorded(cluster):
    a, b = cluster(2)
    master = Endpoint(node=a).attach_master("prices")
    clone = Endpoint(node=b).attach_clone("prices")
    cluster.run_until(lambda: clone._can_read, 10.0)
    history = cluster.history()
    here, there = history.store(master, "here"), history.store(clone, "there")

    here.put("tea", 3)
    cluster.advance(1.0)
    assert there.get("tea") == 3
    assert there.get("milk") is None
    there.ask_unique("tea", 4)
    there.ask_unique("rum", 9)
    cluster.advance(1.0)
    here.erase("tea")
    cluster.advance(1.0)
    assert there.get("tea") is None

    assert [str(each) for each in history.operations] == [
        "write 3 -> None",
        "read -> 3",
        "read -> None",
        "create 4 -> False",
        "create 9 -> True",
        "write -> None",
        "read -> None",
    ]
    history.check(linearizable(Register()))
