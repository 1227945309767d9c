"""Code that uses no lock, because single operations of the interpreter are atomic.

The interpreter gives its lock to another thread after a switch interval, 5 ms by default. Here
it is 1 µs, so that threads meet between almost any two operations.
"""

import itertools
import sys
import threading
import time
from collections import Counter

import pytest

from callboard import Actor, Node, handler, locks
from callboard.actors.cell import Cell
from callboard.actors.future import Future
from callboard.actors.waits.shutdown import Phase, Shutdown
from callboard.commitlog.following.follower import Growth
from callboard.entity.state.client import ThreadedStateClient
from callboard.support.reentry import HandOver, nothing

THREADS = 4
SECONDS = 0.3  # of each test

#: Seconds after which a thread that waits was not woken.
HANG = 60.0


@pytest.fixture(autouse=True)
def _quick_switches():
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


def run_at_once(*functions):
    """Call each function on its own thread; they start together. Raise the first error."""
    start, errors = threading.Barrier(len(functions)), []

    def run(function):
        try:
            start.wait(HANG)
            function()
        except BaseException as error:  # noqa: BLE001  # raised by the test
            errors.append(error)

    threads = [threading.Thread(target=run, args=(function,)) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG)
        assert not thread.is_alive(), "a thread was not woken"
    for error in errors:
        raise error


def until(seconds=SECONDS):
    """Count until some seconds have passed."""
    end = time.monotonic() + seconds
    yield from itertools.takewhile(lambda _: time.monotonic() < end, itertools.count())


def test_one_thread_at_a_time_has_a_turn():
    turn, owners, had = locks.Turn(), [], []

    def take():
        for _ in until():
            if turn.take():
                owners.append(1)
                had.append(len(owners))
                owners.pop()
                turn.end()

    run_at_once(*[take] * THREADS)

    assert set(had) == {1}
    assert turn.take()


def test_locks_are_made_and_dropped_while_threads_ask_which_they_hold():
    def make():
        for number in until():
            with locks.lock(f"short {number}", 1):
                assert locks.holds_any()
            assert not locks.holds_any()

    before = len(locks._data_locks)
    run_at_once(*[make] * THREADS)

    assert len(locks._data_locks) <= before + THREADS


def test_calls_that_are_handed_over_are_made_once_and_in_order():
    queue, made = HandOver(locks.lock("handed over", 1), lambda call: call()), []
    sent = Counter()

    def add(sender):
        for number in until():
            queue.add(lambda number=number: made.append((sender, number)), nothing)
            sent[sender] += 1

    run_at_once(*[lambda sender=sender: add(sender) for sender in range(THREADS)])
    queue.carry_out()

    for sender in range(THREADS):
        numbers = [number for name, number in made if name == sender]
        assert numbers == list(range(sent[sender]))


def test_first_messages_share_one_mailbox():
    for _ in until(2 * SECONDS):
        cell, mailboxes = object.__new__(Cell), []
        cell._mailbox = None

        run_at_once(*[lambda c=cell, m=mailboxes: m.append(c.open_mailbox())] * THREADS)

        assert all(mailbox is cell._mailbox for mailbox in mailboxes)


class Idle(Actor):
    @handler
    def on_number(self, number: int) -> int:
        return number


def test_actors_that_threads_spawn_have_numbers_of_their_own():
    with Node() as node:
        refs = []

        def spawn():
            refs.extend(node.spawn(Idle) for _ in range(100))

        run_at_once(*[spawn] * THREADS)

        assert len(set(refs)) == 100 * THREADS
        assert [ref.ask(7).result(HANG) for ref in refs] == [7] * len(refs)


def test_a_thread_that_begins_to_wait_is_woken_by_an_answer_at_that_moment():
    for number in until():
        future = Future()
        got = []

        run_at_once(
            lambda f=future, g=got: g.append(f.result(HANG)),
            lambda f=future, n=number: f.set_result(n),
        )

        assert got == [number]


def test_a_callback_that_is_added_at_the_moment_of_the_result_is_called_once():
    for _ in until():
        future, calls = Future(), []

        run_at_once(
            lambda f=future, c=calls: f.on_done(c.append),
            lambda f=future: f.set_result(1),
        )

        assert calls == [future]


def test_each_waiter_of_a_log_is_woken_by_the_next_growth():
    growth, woken = Growth(), Counter()
    is_over = threading.Event()

    def wait(name):
        for number in until():
            grown = threading.Event()
            growth.add(grown.set)
            assert grown.wait(HANG), (name, number)
            woken[name] += 1

    def grow():
        while not is_over.is_set():
            if growth.is_awaited:
                growth.notify()

    grower = threading.Thread(target=grow)
    grower.start()
    try:
        run_at_once(*[lambda name=name: wait(name) for name in range(2)])
    finally:
        is_over.set()
        grower.join(HANG)
    assert min(woken.values()) > 1
    assert not growth._waiters


def test_a_wait_that_begins_at_the_end_of_its_node_fails():
    for _ in until():
        shutdown = Shutdown("a node", time.monotonic, lambda *_: None)
        futures, calls = [Future() for _ in range(5)], []

        def register(shutdown=shutdown, futures=futures, calls=calls):
            for future in futures:
                shutdown.guard(future)
                shutdown.on(Phase.ENDED, lambda: calls.append(1))

        run_at_once(register, lambda s=shutdown: s.begin(Phase.ENDED))

        assert all(future.exception() is not None for future in futures)
        assert len(calls) == len(futures)
        assert shutdown.pending == 0


class Counted:
    """A state that only counts its batches."""

    def __init__(self):
        self.batches = 0

    def commit(self, batches):
        self.batches += len(batches)
        return {}

    def close(self):
        """Do nothing."""


def test_the_thread_of_commits_misses_no_batch():
    state, answers = Counted(), []
    client = ThreadedStateClient(state, lambda done, *args: done(*args))
    for number in until():
        answered = threading.Event()
        client.commit((number, 1, [], [], {}, None), lambda _, a=answered: a.set())
        assert answered.wait(HANG)
        answers.append(number)
    client.close()

    assert state.batches == len(answers)
