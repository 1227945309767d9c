"""Replays of logs at the pace of event time, by a clock that the test controls."""

import json
import math
from datetime import UTC, datetime
from decimal import Decimal
from threading import Event

import pytest

from callboard import Endpoint
from callboard.cli import main
from callboard.commitlog import CommitLog, LogReader
from callboard.commitlog.columns import Cbor
from callboard.pipeline import InvalidSetting
from callboard.pipeline.pace import EventPace, event_time, parse_speed
from callboard.pipeline.replay import Replay
from callboard.pipeline.result_publisher import Outlet

SECOND = 10**9


class World:
    """A clock that advances only during waits, and subscribers that record arrival times."""

    def __init__(self):
        self.now = 1000.0
        self.heard = []
        self.takes = 0.0

    def clock(self):
        return self.now

    def pause(self, seconds):
        assert seconds > 0
        self.now += seconds

    def publish_batch(self, *batch):
        self.heard += [(round(self.now - 1000, 6), value) for _, value in batch]
        self.now += self.takes


@pytest.fixture
def world():
    return World()


@pytest.fixture
def play(world, folder):
    def run(speed=1.0, longest=math.inf, field="", start=0):
        pace, outlet = EventPace(speed, longest), Outlet(world)
        replay = Replay(
            *(pace, outlet, field, Event()), next=start, clock=world.clock, pause=world.pause
        )
        assert replay.run(LogReader(folder).read(start))
        return replay

    return run


def at(*seconds):
    return [round(1_700_000_000 * SECOND + each * SECOND) for each in seconds]


def test_records_are_replayed_at_the_pace_of_their_times(fill, play, world):
    fill([*"abcd"], time=at(0, 60, 60, 180))

    replay = play(60)

    assert world.heard == [(0, "a"), (1, "b"), (1, "c"), (3, "d")]
    assert (replay.next, replay.played, replay.late) == (4, 4, 0)


@pytest.mark.parametrize("speed", [0, math.inf])
def test_as_fast_as_possible_waits_never(fill, play, world, speed):
    fill(range(3), time=at(0, 60, 1e6))
    play(speed)

    assert [when for when, _ in world.heard] == [0, 0, 0]


def test_long_pauses_are_shortened_and_the_pace_continues_after_them(fill, play, world):
    fill([*"abcd"], time=at(0, 10, 10_000, 10_010))

    play(10, longest=2.0)

    assert world.heard == [(0, "a"), (1, "b"), (3, "c"), (4, "d")]


def test_drift_does_not_add_up(fill, play, world):
    """Taking a message costs time; the next ones are as early as if it had not."""
    world.takes = 0.25
    fill(range(1000), time=at(*(n * 7.7 for n in range(1000))))

    replay = play(7)

    begun = world.heard[0][0] + 0.25
    assert all(
        when == pytest.approx(begun + n * 1.1) for n, (when, _) in enumerate(world.heard) if n
    )
    assert replay.late < 1e-6


def test_many_records_keep_the_exact_pace():
    pace = EventPace(3)
    for number in range(100_000):
        due = pace.due(number * 10_000_019)

    assert due == 99_999 * 10_000_019 / SECOND / 3


def test_records_with_earlier_times_are_replayed_at_once_and_do_not_move_the_clock_back(
    fill, play, world
):
    fill([*"abcd"], time=at(0, 10, 5, 20))

    replay = play()

    assert world.heard == [(0, "a"), (10, "b"), (10, "c"), (20, "d")]
    assert replay.pace.behind == 1


def test_a_field_of_payloads_has_the_time(fill, play, world):
    times = ["2013-01-01T05:00:00", "2013-01-01 05:00:30+00:00", None, "n/a", 1_357_016_460]
    fill([{"at": each} for each in times], time=at(*range(0, -5, -1)))

    replay = play(30, field="at")

    assert [when for when, _ in world.heard] == [0, 1, 1, 1, 2]
    assert replay.untimed == 2


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (5, 5 * SECOND),
        (1.5, 1_500_000_000),
        (datetime(2013, 1, 1, 5, 0, 0, 7, tzinfo=UTC), 1_357_016_400_000_007_000),
        ("2013-01-01T06:00:00+01:00", 1_357_016_400 * SECOND),
        (True, None),
        (math.nan, None),
        (math.inf, None),
        ([], None),
        ("9" * 400, None),
    ],
)
def test_times_of_fields_are_read(value, expected):
    assert event_time({"at": value}, "at") == expected
    assert event_time([value], "at") is None


@pytest.mark.parametrize("text", ["", "fast", "-1", "nan", "inf", "1x"])
def test_an_invalid_speed_is_refused(text):
    with pytest.raises(InvalidSetting, match="use a number like 60, or max"):
        parse_speed(text)


def test_rows_that_cannot_be_messages_are_counted(folder):
    with CommitLog(folder) as log:
        log.append_batch([1, Cbor(b"\xff"), Decimal("1.5"), 4], topic="/a", time=[0] * 4)
    with Endpoint() as endpoint:
        replay = Replay(EventPace(0), Outlet(endpoint), "", Event())

        assert replay.run(LogReader(folder).read(0))

    assert (replay.played, replay.damaged, replay.unfit) == (3, 1, 2)
    assert (replay.outlet.handed, replay.outlet.unheard) == (0, 2)


def test_a_stopped_replay_reports_its_offset(fill, folder, world):
    fill(range(10), time=at(*range(10)))
    stop = Event()
    replay = Replay(EventPace(1), Outlet(world), "", stop, clock=world.clock)

    def pause(seconds):
        world.pause(seconds)
        if len(world.heard) == 4:
            stop.set()

    replay.pause = pause
    assert not replay.run(LogReader(folder).read(0))
    first, stopped_at = list(world.heard), replay.next
    assert (len(first), stopped_at) == (4, 4)

    stop.clear()
    again = Replay(
        EventPace(1), Outlet(world), "", stop, next=4, clock=world.clock, pause=world.pause
    )
    assert again.run(LogReader(folder).read(stopped_at))
    assert [value for _, value in world.heard] == [*range(10)]


# --- the command ---


@pytest.mark.slow
def test_the_command_plays_a_log_to_subscribers(fill, folder, capsys):
    fill(range(3000), topic=[f"/{n % 3}" for n in range(3000)], time=list(range(3000)))
    with Endpoint() as here, here.make_subscriber(["/0", "/1"]) as subscriber:
        peer = f"basp://127.0.0.1:{here.listen('127.0.0.1', 0)}"
        run = ["log", "replay", folder, "--peer", peer, "--speed", "max", "--json"]
        part = ["--from", "3", "--until", "2000", "--topic", "/0", "--topic", "/1"]

        assert main([*run, *part]) == 0
        row = json.loads(capsys.readouterr().out)

        values = [n for n in range(3, 2000) if n % 3 < 2]
        assert [subscriber.get()[1] for _ in values] == values
        assert row["handed"] == row["records"] == len(values)
        assert (row["unheard"], row["next"]) == (0, 2000)

        assert main([*run, "--wait", "30"]) == 0
        row = json.loads(capsys.readouterr().out)
        assert (row["records"], row["unheard"]) == (3000, 1000)


def test_a_replay_without_subscribers_is_reported(fill, folder, capsys):
    fill([1, 2])

    run = ["log", "replay", folder, "--listen", "127.0.0.1:0", "--wait", "0.1"]
    assert main(run) == 0

    said = capsys.readouterr()
    assert "2 records = 0 handed + 2 unheard + 0 unfit" in said.out
    assert "no node subscribes to /cpu; waiting for 0.1 s" in said.err


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--speed", "fast"], "is not a speed; use a number like 60, or max"),
        (["--longest-pause", "2"], "not a time span"),
        (["--from", "now"], "not a time; use"),
        ([], "--listen HOST:PORT"),
    ],
)
def test_a_usage_error_of_replay_is_reported_in_one_line(fill, folder, capsys, options, says):
    fill([1])

    assert main(["log", "replay", folder, *options]) != 0

    (line,) = capsys.readouterr().err.splitlines()
    assert says in line
