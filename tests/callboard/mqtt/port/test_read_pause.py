"""Publishers wait for readers, but not for ever."""

from callboard.mqtt.port.read_pause import WINDOW, ReadPause


class Side:
    """A reader or a publisher."""

    def __init__(self):
        self.is_held = False

    def hold(self):
        self.is_held = True

    def release(self):
        self.is_held = False


class Play:
    """Back-pressure with a clock and timers that tests move."""

    def __init__(self, patience=0.5):
        self.now = 0.0
        self.timers = []
        self.pressure = ReadPause(patience, lambda: self.now)
        self.reader, self.publisher = Side(), Side()

    def later(self, seconds, call):
        self.timers.append((self.now + seconds, call))

    def begin(self):
        self.pressure.begin(self.reader, self.later)

    def publish(self):
        if self.pressure.full:
            self.pressure.wait(self.publisher)

    def pass_time(self, seconds):
        self.now += seconds
        due = [call for when, call in self.timers if when <= self.now]
        self.timers = [timer for timer in self.timers if timer[0] > self.now]
        for call in due:
            call()


def test_a_publisher_waits_until_the_reader_has_room():
    play = Play()
    play.begin()
    play.publish()
    assert play.publisher.is_held

    play.pressure.end(play.reader)

    assert not play.publisher.is_held


def test_a_stalled_reader_is_ignored_for_a_while():
    play = Play()
    play.begin()
    play.publish()

    play.pass_time(0.5)

    assert not play.publisher.is_held
    assert play.pressure.slow_readers() == [play.reader]
    assert play.pressure.passed_over == 1
    play.begin()
    play.publish()
    assert not play.publisher.is_held
    play.pass_time(WINDOW)
    play.begin()
    play.publish()
    assert play.publisher.is_held


def test_a_reader_that_trickles_holds_half_of_the_time_at_most():
    play = Play()
    held = 0.0
    for _ in range(1000):
        play.begin()
        play.publish()
        held += 0.1 * play.publisher.is_held
        play.pass_time(0.1)
        play.pressure.end(play.reader)

    assert 20 <= held <= 52


def test_a_slow_reader_is_still_read_and_its_end_releases_publishers():
    play = Play()
    play.begin()
    play.pressure.wait(play.reader)
    play.publish()
    assert not play.reader.is_held

    play.pressure.forget(play.reader)

    assert not play.publisher.is_held
    assert play.pressure.slow_readers() == []


def test_without_patience_no_publisher_waits():
    play = Play(patience=0)
    play.begin()
    play.publish()

    assert not play.publisher.is_held
