"""Files that actors watch, and what status requests tell."""

import os
from datetime import timedelta

import pytest
from thespian.actors import Actor, ThespianWatch, WatchMessage
from thespian.system.messages.status import (
    Thespian_ActorStatus,
    Thespian_StatusReq,
    Thespian_SystemStatus,
    formatStatus,
)

from callboard.support.platform.system import HAS_EPOLL


class Reader(Actor):
    """Watches the files that it is told, until they end."""

    def __init__(self):
        self.filenos = []
        self.read = []

    def receiveMessage(self, msg, sender):
        if isinstance(msg, list):
            self.asker, self.filenos = sender, msg
            self.send(sender, "watching")
        elif isinstance(msg, WatchMessage):
            for fileno in msg.ready:
                data = os.read(fileno, 100)
                if data:
                    self.send(self.asker, data)
                else:
                    self.filenos.remove(fileno)
        elif msg == "ignore":
            self.send(sender, "ignoring")
            return None
        return ThespianWatch(self.filenos) if self.filenos else None


class Idle(Actor):
    def receiveMessage(self, msg, sender):
        if msg == "child":
            self.send(sender, self.createActor(Idle))
        elif msg == "later":
            self.wakeupAfter(timedelta(hours=1))
            self.send(sender, "asleep")


@pytest.fixture
def pipe():
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def test_a_ready_file_is_reported_to_its_watcher(system, pipe):
    reader = system.createActor(Reader)
    assert system.ask(reader, [pipe[0]], 5) == "watching"

    os.write(pipe[1], b"one")
    first = system.listen(5)
    os.write(pipe[1], b"two")

    assert [first, system.listen(5)] == [b"one", b"two"]


def test_a_watch_ends_when_it_is_not_returned_again(system, pipe, base):
    reader = system.createActor(Reader)
    system.ask(reader, [pipe[0]], 5)
    assert system.ask(reader, "ignore", 5) == "ignoring"

    os.write(pipe[1], b"one")

    assert system.listen(0.05) is None
    assert pipe[0] not in base.runtime.runner.selector.get_map()


def test_an_actor_that_ends_watches_no_longer(system, pipe, base):
    reader = system.createActor(Reader)
    system.ask(reader, [pipe[0]], 5)
    down = base.runtime.monitor(reader)
    reader.kill()
    down.result(5)
    system.ask(system.createActor(Reader), "ignore", 5)  # the runner has had a turn since

    assert pipe[0] not in base.runtime.runner.selector.get_map()


@pytest.mark.skipif(not HAS_EPOLL, reason="only epoll checks a descriptor when it is added")
def test_a_file_that_cannot_be_watched_is_logged(system, caplog):
    reader = system.createActor(Reader)

    assert system.ask(reader, [987654], 5) == "watching"
    assert system.ask(reader, "ignore", 5) == "ignoring"

    assert "987654" in caplog.text


def test_actors_tell_their_status(system, base):
    idle = system.createActor(Idle)
    child = system.ask(idle, "child", 5)
    system.ask(idle, "later", 5)

    status = system.ask(idle, Thespian_StatusReq(), 5)

    assert isinstance(status, Thespian_ActorStatus)
    assert status.childActors == [child]
    assert [address for address, _ in status.pendingWakeups] == [idle]
    assert system.ask(child, Thespian_StatusReq(), 5).parentAddress == idle


def test_the_system_reports_its_status(system, capsys):
    named = system.createActor(Idle, globalName="me")

    status = system.ask(system.systemAddress, Thespian_StatusReq(), 5)
    formatStatus(status)

    assert isinstance(status, Thespian_SystemStatus)
    assert status.childActors == [named]
    assert status.globalActors == {"me": named}
    assert "colour: blue" in capsys.readouterr().out
