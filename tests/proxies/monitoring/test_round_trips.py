"""Round trips of links, with a clock and questions of the test."""

import pytest

from callboard.actors.errors import AskTimeout
from callboard.actors.future import Future
from callboard.proxies.monitoring.round_trips import ANSWER_SECONDS, RoundTrips


class Link:
    """The clock, and the questions that were sent: neighbor and future."""

    def __init__(self) -> None:
        self.now, self.questions, self.seconds = 10.0, [], {}
        self.trips = RoundTrips(lambda: self.now, self.ask, self.seconds)

    def ask(self, neighbor, timeout):
        question = Future()
        self.questions.append((neighbor, question))
        return question


@pytest.fixture
def link():
    return Link()


def test_the_time_until_the_answer_is_stored(link):
    (pending,) = link.trips.measure([b"shop"])
    link.now += 0.25
    pending.set_result("rows")

    assert link.seconds == {b"shop": 0.25}


def test_a_link_is_not_measured_again_while_a_question_is_unanswered_or_within_a_second(link):
    link.trips.measure([b"shop"])
    link.now += 3.0
    link.trips.measure([b"shop"])
    assert len(link.questions) == 1

    link.questions[0][1].set_result("rows")
    link.trips.measure([b"shop"])
    assert len(link.questions) == 2

    link.questions[1][1].set_result("rows")
    link.now += 0.5
    assert link.trips.measure([b"shop"]) == []
    assert len(link.questions) == 2


def test_an_unanswered_question_counts_with_its_whole_timeout(link):
    link.trips.measure([b"shop"])
    link.questions[0][1].set_exception(AskTimeout("no answer"))

    assert link.seconds == {b"shop": ANSWER_SECONDS}


def test_the_round_trip_of_a_link_that_ended_is_forgotten(link):
    link.trips.measure([b"shop"])
    link.questions[0][1].set_result("rows")

    link.trips.measure([b"bank"])

    assert link.seconds == {}
