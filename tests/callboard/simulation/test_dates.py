"""What actors of simulated nodes are told of the time, whichever function they ask."""

# ruff: noqa: DTZ001, DTZ002, DTZ003, DTZ005, DTZ007, DTZ011, TID251 - they are what is tested

import datetime
import time
from dataclasses import dataclass
from datetime import UTC, date, timedelta, timezone
from datetime import datetime as moment
from time import monotonic, perf_counter, time_ns

import pytest

from callboard import Actor, handler, message
from callboard.simulation import Cluster
from callboard.simulation.clock import EPOCH

BEGIN = datetime.datetime(2026, 1, 1, tzinfo=UTC)
EAST = timezone(timedelta(hours=9))


class Told:
    """Every way to ask for the date, each as seconds since 1970."""

    def __init__(self):
        naive = [moment.now(), moment.today(), moment.utcnow(), datetime.datetime.now()]
        naive += [moment.strptime(text, "%c") for text in (time.ctime(), time.asctime())]
        self.dates = [each.replace(tzinfo=UTC).timestamp() for each in naive]
        self.dates += [moment.now(UTC).timestamp(), moment.now(tz=EAST).timestamp()]
        self.dates += [time.time(), time.time_ns() / 1e9, time_ns() / 1e9]
        self.dates += [time.mktime(time.localtime()), time.mktime(time.gmtime())]
        self.dates += [float(time.mktime(time.strptime(time.strftime("%c"), "%c")))]
        self.dates += [time.clock_gettime(time.CLOCK_REALTIME)]
        self.days = [date.today(), datetime.date.today(), moment.now().date()]
        self.durations = [time.monotonic(), monotonic(), time.perf_counter(), perf_counter()]
        self.durations += [time.monotonic_ns() / 1e9, time.clock_gettime(time.CLOCK_MONOTONIC)]


def told(cluster, node):
    """Return what an actor is told just now."""
    found = []

    class Once(Actor):
        @handler
        def on_ask(self, number: int) -> int:
            found.append(Told())
            return number

    node.spawn(Once).ask(1).result(5)
    return found[0]


@pytest.mark.slow
def test_every_way_to_ask_for_the_date_is_virtual(cluster):
    (node,) = cluster(1)
    cluster.advance(90_000.0)

    found = told(cluster, node)

    assert found.dates == pytest.approx([EPOCH + cluster.now] * len(found.dates), abs=1.0)
    assert found.days == [(BEGIN + timedelta(days=1)).date()] * 3
    assert found.durations == pytest.approx([cluster.now] * len(found.durations), abs=1e-6)


def test_a_step_of_the_clock_moves_the_date_and_no_duration(cluster):
    (node,) = cluster(1)
    cluster.clock_step(node, 86_400.0)

    found = told(cluster, node)

    assert found.dates == pytest.approx([EPOCH + 86_400.0] * len(found.dates), abs=1.0)
    assert found.durations == pytest.approx([cluster.now] * len(found.durations), abs=1e-6)


def test_objects_are_of_the_real_classes(cluster):
    (node,) = cluster(1)
    kinds = []

    class Kinds(Actor):
        @handler
        def on_ask(self, number: int) -> bool:
            kinds.extend((type(moment.now(UTC)), type(date.today()), type(moment(2026, 1, 2))))
            return isinstance(moment.now(UTC), moment) and isinstance(BEGIN, moment)

    assert node.spawn(Kinds).ask(1).result(5)
    assert [kind.__name__ for kind in kinds] == ["datetime", "date", "datetime"]


def test_the_test_itself_has_the_real_time(cluster):
    (node,) = cluster(1)
    before = told(cluster, node)

    real = Told()

    assert min(real.dates) > EPOCH or max(real.dates) < EPOCH
    assert max(real.dates) - min(real.dates) < 86_401.0  # two of them are in local time
    assert abs(time.time() - before.dates[0]) > 1.0


def test_everything_is_put_back_with_the_last_cluster():
    before = (time.time, time.monotonic, datetime.datetime, datetime.date, moment, monotonic)
    outer, inner = Cluster(1), Cluster(2)
    assert time.time is not before[0]
    inner.close()
    assert time.time is not before[0], "one is open"
    outer.close()  # in this order: the one that was made first is what asks waited for before

    now = (time.time, time.monotonic, datetime.datetime, datetime.date, moment, monotonic)
    assert all(map(lambda one, other: one is other, before, now))


def test_callboard_measures_real_durations(cluster):
    (node,) = cluster(1)
    frame = {"__name__": "callboard.somewhere", "time": time}
    exec("def measured(): return time.monotonic()", frame)
    found = []

    class Both(Actor):
        @handler
        def on_ask(self, number: int) -> None:
            found.extend((frame["measured"](), time.monotonic()))

    real = time.monotonic()
    node.spawn(Both).ask(1).result(5)

    assert found[0] >= real
    assert found[1] == pytest.approx(cluster.now, abs=1e-6)


def test_messages_may_be_dates_where_classes_are_made_while_a_cluster_is_open(cluster):
    @message("test_dates.Appointment")
    @dataclass(frozen=True)
    class Appointment:
        at: moment

    class Diary(Actor):
        @handler
        def on_moment(self, at: moment) -> str:
            return f"moment {at:%F}"

        @handler
        def on_day(self, day: date | None) -> str:
            return f"day {day}"

        @handler
        def on_appointment(self, appointment: Appointment) -> moment:
            return appointment.at

    one, other = cluster(2)
    diary = one.ref(str(other.spawn(Diary)))

    assert diary.ask(BEGIN).result(5) == "moment 2026-01-01"
    assert diary.ask(BEGIN.date()).result(5) == "day 2026-01-01"
    assert diary.ask(Appointment(BEGIN)).result(5) == BEGIN
