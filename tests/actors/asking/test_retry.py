"""Asks that are repeated, on one node: handled once, answered with one answer."""

import asyncio
import threading

import pytest

from callboard import Actor, Mailbox, Node, errors, handler
from callboard.actors.asking.retry import Retries
from tests.polling import eventually


class Counts(Actor):
    def __init__(self):
        self.count = 0
        self.started = threading.Event()
        self.gate = threading.Event()

    @handler
    async def number(self, msg: int) -> int:
        self.count += 1
        self.started.set()
        while not self.gate.is_set():
            await self.sleep(0.001)
        return self.count

    @handler
    def text(self, msg: str) -> int:
        self.count += 1
        raise ValueError(msg)


class Full(Actor):
    mailbox = Mailbox(limit=1, on_full="fail")

    def __init__(self):
        self.gate = threading.Event()

    @handler
    def number(self, msg: int) -> int:
        self.gate.wait(20)
        return msg


@pytest.fixture
def node():
    with Node() as made:
        yield made


def actor_of(ref):
    return ref.target.actor


def test_a_slow_handler_runs_once_for_all_attempts(node):
    ref = node.spawn(Counts)
    actor = actor_of(ref)

    asked = ref.ask(1, timeout=0.02, retries=200, backoff=0.001)
    assert actor.started.wait(20)
    eventually(lambda: ref.target.depth >= 3)  # repeats wait behind the first
    actor.gate.set()

    assert asked.result(20) == 1
    assert actor.count == 1


def test_the_last_attempt_fails_and_the_handler_stops(node):
    ref = node.spawn(Counts)
    actor = actor_of(ref)

    with pytest.raises(errors.AskTimeout, match=r"sent 3 times"):
        ref.ask(1, timeout=0.05, retries=2, backoff=0.001).result(20)

    eventually(lambda: ref.target.task is None)
    actor.gate.set()
    assert ref.ask(1).result(20) == actor.count  # it goes on


def test_a_full_mailbox_is_asked_again(node):
    ref = node.spawn(Full)
    actor = actor_of(ref)
    others = [ref.ask(0) for _ in range(3)]

    asked = ref.ask(7, retries=1_000, backoff=0.001)
    actor.gate.set()

    assert asked.result(20) == 7
    assert len(others) == 3


def test_an_error_of_the_handler_is_not_retried(node):
    ref = node.spawn(Counts)
    actor = actor_of(ref)

    with pytest.raises(errors.RemoteError, match="bad"):
        ref.ask("bad", retries=5, backoff=0.001).result(20)
    assert actor.count == 1


def test_to_cancel_ends_the_repeats_and_the_handler(node):
    ref = node.spawn(Counts)
    asked = ref.ask(1, timeout=0.05, retries=100, backoff=0.001)
    assert actor_of(ref).started.wait(20)

    assert asked.cancel()

    eventually(lambda: ref.target.task is None)
    assert not asked.cancel()


def test_aask_repeats_too(node):
    ref = node.spawn(Counts)
    actor_of(ref).gate.set()

    assert asyncio.run(ref.aask(1, retries=3)) == 1


def test_the_whole_ask_has_an_end():
    assert Retries(2, 1.0, 5.0, None).ends(0.0) == 15 + 1.5 * 3
    assert Retries(2, 1.0, 5.0, 7.0).ends(0.0) == 7.0
    assert Retries(2, 1.0, None, None).ends(0.0) is None
    assert Retries(10**400, 10**400, 5.0, 7.0).ends(0.0) == 7.0


@pytest.mark.parametrize(
    ("options", "error", "remedy"),
    [
        ({"retries": "3"}, errors.WrongArgument, "whole number"),
        ({"retries": True}, errors.WrongArgument, "whole number"),
        ({"retries": -1}, errors.WrongValue, "at least 0"),
        ({"retries": 1, "backoff": 0}, errors.InvalidSeconds, "backoff"),
        ({"retries": 1, "timeout": "1"}, errors.InvalidSeconds, "number of seconds"),
    ],
)
def test_invalid_options_are_refused(node, options, error, remedy):
    with pytest.raises(error, match=remedy):
        node.spawn(Counts).ask(1, **options)
