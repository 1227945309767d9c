"""Answers that serve for as long as the number of their rows says."""

from callboard import Actor, Node, handler
from callboard.basp.header import INSPECTOR
from callboard.proxies.inspection import ORDERED_AT_ONCE, Inspect
from callboard.proxies.row_cache import KEPT, RowCache


class Clock:
    def __init__(self):
        self.calls = []

    def call_later(self, delay, function, *args):
        self.calls.append((delay, function, args))

    def run(self):
        delay, function, args = self.calls.pop(0)
        function(*args)
        return delay


def test_an_answer_of_many_rows_serves_until_its_time_is_over():
    clock = Clock()
    kept = RowCache(clock.call_later, 1_000)
    kept.put("question", "answer", 4_000)

    assert kept.take("question") == "answer"
    assert clock.run() == 4.0
    assert kept.take("question") is None


def test_an_answer_of_few_rows_is_not_kept_and_sets_no_timer():
    clock = Clock()
    kept = RowCache(clock.call_later, 1_000)
    kept.put("question", "answer", 99)

    assert kept.take("question") is None
    assert not clock.calls


def test_questions_that_differ_do_not_fill_the_memory():
    kept = RowCache(Clock().call_later, 10)
    for number in range(100):
        kept.put(number, "answer", 10)

    assert sum(kept.take(number) is not None for number in range(100)) == KEPT


class Busy(Actor):
    @handler
    def on_number(self, number: int) -> int:
        return number


def test_an_order_of_many_actors_never_tells_of_those_that_ended():
    with Node() as node:
        actors = [node.spawn(Busy) for _ in range(ORDERED_AT_ONCE + 10)]
        for rounds, actor in enumerate(actors[:6]):
            for number in range(7 - rounds):
                actor.ask(number).result(10)
        inspector = node.runtime.ref_of(node.node_id, INSPECTOR)
        question = Inspect(3, sort="handled", skip=1)

        told = inspector.ask(question).result(10)
        assert [row.address for row in told.actors] == [str(each) for each in actors[1:4]]
        down = node.monitor(actors[2])
        actors[2].stop()
        down.result(10)
        again = inspector.ask(question).result(10)
        assert str(actors[2]) not in [row.address for row in again.actors]
        assert again.actor_count == len(actors) - 1
        other = inspector.ask(Inspect(2, sort="handled", rising=True)).result(10)
        assert [row.handled for row in other.actors] == [0, 0]
