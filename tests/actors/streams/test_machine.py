"""The machines of a stream's two ends: credit, numbers and the end, over any transport."""

from collections import deque

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from callboard.actors.errors import RemoteError, StreamFailed
from callboard.actors.streams.machine import (
    ANSWER_LIMIT,
    BYTES_LIMIT,
    POLL_SECONDS,
    Pull,
    ReaderEnd,
    SourceEnd,
)
from callboard.actors.streams.messages import StreamItems


class Ends(RuleBasedStateMachine):
    """Both ends with a transport that may lose messages, against a list of what was made."""

    def __init__(self):
        super().__init__()
        self.now = 0.0
        self.buffer = 5
        self.source, self.reader = SourceEnd(self.now, idle=50.0), ReaderEnd(self.buffer)
        self.pulls, self.answers = deque(), deque()
        self.made, self.got, self.held = 0, [], 0
        self.error = self.failure = None
        self.is_lossy = False

    def send(self, answers):
        self.answers += [(answer.items, answer.error) for answer in answers]

    @rule()
    def the_reader_pulls_when_it_has_consumed_all(self):
        pull = self.reader.next_pull()
        if pull is not None:
            self.held = 0
            self.pulls.append(pull)

    @precondition(lambda self: self.pulls)
    @rule()
    def a_pull_arrives(self):
        self.send(self.source.pull(self.pulls.popleft(), "asker", self.now))

    @precondition(lambda self: not self.source.is_over)
    @rule(count=st.integers(1, 9))
    def the_generator_makes_items(self, count):
        for _ in range(count):
            if len(self.source.batch) >= self.source.room:
                break
            self.source.batch.append(self.made)
            self.made += 1
        self.send(self.source.flush(self.now))

    @precondition(lambda self: self.answers and self.failure is None)
    @rule()
    def an_answer_arrives(self):
        items, error = self.answers.popleft()
        if error is not None:
            self.failure = error
            self.reader.close()
            return
        try:
            items = self.reader.receive(items)
        except StreamFailed as lost:
            assert self.is_lossy
            self.failure = lost
            self.reader.close()
        else:
            self.held = len(items)
            self.got += items

    @precondition(lambda self: self.answers or self.pulls)
    @rule()
    def a_message_is_lost_and_the_pull_is_repeated(self):
        self.is_lossy = True
        if self.answers:
            self.answers.popleft()
        else:
            self.pulls.popleft()
        if not self.reader.is_over:
            self.reader._is_pending = False  # a transport that repeats pulls is not ours

    @precondition(lambda self: not self.source.is_over)
    @rule(error=st.sampled_from([None, RemoteError("ValueError", "x")]))
    def the_generator_ends(self, error):
        self.error = error
        self.send(self.source.end(error, self.now))

    @rule(seconds=st.floats(0, 30))
    def time_passes(self, seconds):
        self.now += seconds
        self.send(self.source.tick(self.now))

    @invariant()
    def the_reader_has_a_prefix_without_a_gap(self):
        assert self.got == list(range(len(self.got)))

    @invariant()
    def each_end_holds_at_most_the_buffer(self):
        assert len(self.source.batch) <= self.buffer
        assert self.held <= self.buffer
        if not self.is_lossy:
            assert self.made - len(self.got) + self.held <= 2 * self.buffer

    @invariant()
    def an_end_without_an_error_comes_after_all_items(self):
        if self.reader.is_over and not self.reader.is_closed:
            assert self.error is None
            assert len(self.got) == self.made


TestEnds = Ends.TestCase


def opened():
    return SourceEnd(0.0, idle=10.0)


def test_nothing_is_made_before_the_first_pull():
    assert opened().room == 0


def test_items_are_sent_at_once_while_a_pull_waits():
    source = opened()
    assert source.pull(Pull(0, 3, 100), "a", 0.0) == []
    source.batch.append("x")

    (answer,) = source.flush(0.0)

    assert answer == ("a", StreamItems(0, ["x"]), None)


def test_items_that_were_made_ahead_answer_the_next_pull_at_once():
    source = opened()
    source.pull(Pull(0, 3, 100), "a", 0.0)
    source.batch.append("x")
    source.flush(0.0)
    source.batch.append("y")
    assert source.flush(0.0) == []

    (answer,) = source.pull(Pull(1, 3, 100), "b", 0.0)

    assert answer == ("b", StreamItems(1, ["y"]), None)


def test_an_error_follows_the_items_that_were_made_before_it():
    source, error = opened(), RemoteError("ValueError", "x")
    source.pull(Pull(0, 3, 100), "a", 0.0)
    source.batch.append("x")
    assert [answer.error for answer in source.end(error, 0.0)] == [None]
    assert not source.is_reported

    (answer,) = source.pull(Pull(1, 3, 100), "b", 0.0)

    assert answer == ("b", None, error)
    assert source.is_reported


def test_a_pull_that_was_lost_ends_the_stream():
    source = opened()

    (answer,) = source.pull(Pull(1, 3, 100), "b", 0.0)

    assert isinstance(answer.error, StreamFailed)
    assert "pull 1 arrived instead of pull 0" in str(answer.error)
    assert source.is_over


def test_a_waiting_pull_is_answered_without_items_after_a_while():
    source = opened()
    source.pull(Pull(0, 3, 100), "a", 0.0)
    assert source.tick(POLL_SECONDS - 1) == []

    (answer,) = source.tick(POLL_SECONDS)

    assert answer == ("a", StreamItems(0, []), None)


def test_a_reader_is_idle_only_while_none_of_its_pulls_waits():
    source = opened()
    assert not source.is_idle(9.0)
    assert source.is_idle(10.0)
    source.pull(Pull(0, 3, 100), "a", 11.0)
    assert not source.is_idle(1_000.0)


def test_the_credit_of_a_pull_is_limited():
    source = opened()
    source.pull(Pull(0, 10**9, 10**12), "a", 0.0)
    assert (source.room, source.bytes_room) == (ANSWER_LIMIT, BYTES_LIMIT)


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ("items", "a str arrived"),
        (StreamItems(0, (1,)), "a StreamItems arrived"),
        (StreamItems(3, [1]), "item 3 arrived instead of item 0"),
        (StreamItems(0, [1, 2, 3]), "3 items arrived instead of at most 2"),
    ],
)
def test_a_reader_refuses_answers_that_break_the_rules(answer, text):
    reader = ReaderEnd(2)
    assert reader.next_pull() == Pull(0, 2, BYTES_LIMIT)

    with pytest.raises(StreamFailed, match=text):
        reader.receive(answer)


def test_a_closed_reader_pulls_no_more():
    reader = ReaderEnd(2)
    reader.close()
    assert reader.next_pull() is None
    assert reader.is_closed
