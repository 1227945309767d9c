import threading

from callboard.commitlog.writer import Background


class Work(Background):
    def __init__(self):
        self.turns = 0
        super().__init__("test", 0.0)

    def work(self):
        self.turns += 1
        return True


class EndedMeanwhile(threading.Event):
    """An end that comes right after the pause, before the thread has looked again."""

    def __init__(self, wanted):
        super().__init__()
        self._wake = wanted

    def wait(self, timeout=None):
        was_set = super().wait(timeout)
        self.set()
        self._wake.set()
        return was_set


def test_an_end_between_the_pause_and_the_work_is_not_missed():
    background = Work()
    background._ended = EndedMeanwhile(background._wake)

    background.wake()
    background._thread.join(20)

    assert not background._thread.is_alive()
