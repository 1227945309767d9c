"""The audit log holds refusals at a bounded rate, and says how many it left out."""

import logging

import pytest

from callboard.proxies.rights.audit import Audit


class Stage:
    def __init__(self):
        self.now, self.events, self.timers = 0.0, [], []
        self.audit = Audit(lambda: self.now, self.call_later, self.events.append)

    def call_later(self, seconds, call):
        self.timers.append((self.now + seconds, call))

    def advance(self, seconds):
        self.now += seconds
        due = [call for when, call in self.timers if when <= self.now]
        self.timers = [timer for timer in self.timers if timer[0] > self.now]
        for call in due:
            call()

    def refuse(self, count):
        for _ in range(count):
            self.audit.refused("sensor", b"n" * 18, "send", "safe")


@pytest.fixture
def lines(caplog):
    with caplog.at_level(logging.WARNING, "callboard.audit"):
        yield lambda: [record.getMessage() for record in caplog.records]


def test_the_audit_log_has_ten_lines_a_second_and_the_number_of_the_others(lines):
    stage = Stage()
    stage.refuse(1_000)
    assert len(lines()) == 100  # at once

    for second in range(1, 6):
        stage.advance(1.0)
        stage.refuse(1_000)
        assert len(lines()) == 100 + 10 * second

    assert "(900 more before, not written)" in lines()[100]
    assert stage.audit.count == 6_000
    stage.advance(60.0)
    stage.refuse(1)
    assert "(990 more before, not written)" in lines()[-1]


def test_an_event_tells_of_all_refusals_of_a_second():
    stage = Stage()
    stage.refuse(1_000)
    stage.advance(1.0)
    stage.advance(1.0)

    assert [event.count for event in stage.events] == [1, 999]
    assert stage.timers == []
