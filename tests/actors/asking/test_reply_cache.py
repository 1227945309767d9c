"""Answers that are kept by key: for how long, how many, and for whom."""

import asyncio

import pytest

from callboard.actors.asking import reply_cache
from callboard.actors.asking.reply_cache import ReplyCache
from callboard.actors.errors import ActorDown, AskTimeout, MailboxFull, RemoteError
from callboard.actors.future import Future


class Clock:
    def __init__(self):
        self.now, self.timers = 0.0, []

    def call_later(self, delay, callback):
        self.timers.append((self.now + delay, callback))

    def advance(self, seconds):
        self.now += seconds
        due = [timer for timer in self.timers if timer[0] <= self.now]
        self.timers = [timer for timer in self.timers if timer[0] > self.now]
        for _, callback in due:
            callback()


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def answers(clock):
    return ReplyCache(lambda: clock.now, clock.call_later)


def asker(node=b"n"):
    future = Asker()
    future.node = node
    return future


class Asker(Future):
    node = b""


def test_a_repeat_gets_the_kept_answer(answers):
    answers.admit(17, b"key", asker()).set_result("answer")
    repeat = asker()

    assert answers.admit(17, b"key", repeat) is None
    assert repeat.result(0) == "answer"


def test_a_repeat_joins_the_pending_reply(answers):
    first, second = asker(), asker()
    running = answers.admit(17, b"key", first)

    assert answers.admit(17, b"key", second) is None
    assert not second.done()
    assert running.set_result(1)
    assert first.result(0) == second.result(0) == 1
    assert not running.set_result(2)


@pytest.mark.parametrize(
    ("number", "key", "node"), [(18, b"k", b"n"), (17, b"l", b"n"), (17, b"k", b"m")]
)
def test_another_actor_key_or_node_is_another_ask(answers, number, key, node):
    answers.admit(17, b"k", asker()).set_result(1)

    assert answers.admit(number, key, asker(node)) is not None


@pytest.mark.parametrize(
    ("error", "is_kept"),
    [
        (RemoteError("ValueError", "x"), True),
        (ActorDown("x"), False),
        (AskTimeout("x"), False),
        (MailboxFull("x"), False),
        (asyncio.CancelledError(), True),
    ],
)
def test_the_error_of_a_handler_that_began_is_kept(answers, error, is_kept):
    first = asker()
    answers.admit(17, b"k", first).set_exception(error)

    assert first.done()
    assert (answers.admit(17, b"k", asker()) is None) == is_kept


def test_answers_are_forgotten_after_their_time(answers, clock):
    answers.admit(17, b"a", asker()).set_result(1)
    clock.advance(reply_cache.KEPT_SECONDS / 2)
    answers.admit(17, b"b", asker()).set_result(1)
    clock.advance(reply_cache.KEPT_SECONDS / 2)

    assert answers.admit(17, b"b", asker()) is None
    assert answers.admit(17, b"a", asker()) is not None
    clock.advance(reply_cache.KEPT_SECONDS)
    assert answers.octets == 0
    assert len(answers) == 1  # what is under way
    assert clock.timers == []


def test_so_many_are_kept_of_each_actor(answers, monkeypatch):
    monkeypatch.setattr(reply_cache, "KEPT_BY_ACTOR", 2)
    for key in (b"a", b"b", b"c"):
        answers.admit(17, key, asker()).set_result(1)
    answers.admit(18, b"a", asker()).set_result(1)

    assert answers.admit(17, b"a", asker()) is not None
    assert answers.admit(17, b"b", asker()) is None
    assert answers.admit(18, b"a", asker()) is None


def test_so_many_bytes_are_kept_of_all(answers, monkeypatch):
    monkeypatch.setattr(reply_cache, "KEPT_BYTES", 3_000)
    for key in (b"a", b"b", b"c", b"d"):
        answers.admit(17, key, asker()).set_result(bytes(1_000))

    assert answers.octets <= 3_000
    assert answers.admit(17, b"a", asker()) is not None
    assert answers.admit(17, b"d", asker()) is None


def test_so_many_wait_for_one_answer(answers, monkeypatch):
    running = answers.admit(17, b"k", asker())
    for _ in range(10 * reply_cache.JOINED_LIMIT):
        answers.admit(17, b"k", asker())

    assert len(running._askers) == reply_cache.JOINED_LIMIT


def test_an_actor_that_ended_has_answered(answers):
    running = answers.admit(17, b"k", asker())
    repeat = asker()

    assert not answers.repeats(17, b"k", repeat)
    running.set_result(5)
    assert answers.repeats(17, b"k", repeat)
    assert repeat.result(0) == 5
    assert not answers.repeats(17, b"other", asker())


class Refusal(RemoteError):
    nothing_happened = True


@pytest.mark.parametrize("is_raised", [False, True])
def test_a_refusal_is_not_kept(answers, is_raised):
    first, refusal = asker(), Refusal("Refusal", "not here")
    taken = answers.admit(17, b"k", first)
    (taken.set_exception if is_raised else taken.set_result)(refusal)

    assert first.done()
    assert answers.admit(17, b"k", asker()) is not None
