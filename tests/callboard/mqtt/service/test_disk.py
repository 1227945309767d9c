"""A router on a full, slow or read-only disk keeps its promises and continues."""

import errno
import os
import threading

import pytest

from callboard import Actor, Node, handler
from callboard.commitlog.disk import RealFile
from callboard.mqtt import Router, RouterConfig
from callboard.mqtt.port.listener import ListenerSettings
from callboard.mqtt.wire.packet import Publish
from tests.callboard.mqtt.caller import Caller
from tests.polling import eventually


class Echo(Actor):
    @handler
    def text(self, message: str) -> str:
        return message


class Disk:
    """A disk whose treatment of writes can be set."""

    def __init__(self, monkeypatch):
        self.code, self.refused = 0, 0
        self.is_free = threading.Event()
        self.is_free.set()
        write = RealFile.write

        def written(file, data):
            self.is_free.wait(10)
            if self.code:
                self.refused += 1
                write(file, data[: len(data) // 2])
                raise OSError(self.code, os.strerror(self.code))
            return write(file, data)

        monkeypatch.setattr(RealFile, "write", written)


@pytest.fixture
def disk(monkeypatch):
    return Disk(monkeypatch)


def running(folder, node):
    listeners = (ListenerSettings("127.0.0.1:0"),)
    return Router(RouterConfig(listeners, directory=folder, sys_interval=0), node=node)


def retained(router):
    return router.call(lambda: {run.topic for run in router.machine.logs.retained})


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EROFS])
def test_a_full_disk_makes_clients_wait_and_loses_no_message(tmp_path, disk, code, caplog):
    with Node() as node:
        with running(tmp_path, node) as router, Caller(router.port, "c") as caller:
            caller.say(Publish("a", b"1", 1, retain=True, packet_id=1))
            caller.hear_packets(1)
            disk.code = code
            caller.say(Publish("b", b"2", 1, retain=True, packet_id=2))
            eventually(lambda: disk.refused > 1)
            assert node.spawn(Echo).ask("the node lives").result(5) == "the node lives"
            assert "wait for the disk" in caplog.text
            disk.code = 0
            assert caller.hear_packets(1)[0].packet_id == 2
            assert "is written again" in caplog.text
        with running(tmp_path, node) as router:
            assert retained(router) == {b"a", b"b"}


def test_a_router_that_waits_for_the_disk_can_be_closed(tmp_path, disk):
    with Node() as node:
        router = running(tmp_path, node).start()
        with Caller(router.port, "c") as caller:
            disk.code = errno.ENOSPC
            caller.say(Publish("b", b"2", 1, retain=True, packet_id=2))
            eventually(lambda: disk.refused > 1)
            router.close()
        disk.code = 0
        with running(tmp_path, node) as router:
            assert retained(router) == set()


def test_a_killed_router_leaves_its_journal_unlocked(tmp_path, disk):
    with Node() as node:
        router = running(tmp_path, node).start()
        port = router.port
        down = node.monitor(router.ref)
        router.ref.kill()
        down.result(5)
        with pytest.raises(OSError, match="refused"):
            Caller(port)
        with running(tmp_path, node) as router:
            assert retained(router) == set()
        router.close()


def test_a_node_whose_router_waits_for_the_disk_can_be_closed(tmp_path, disk):
    node = Node()
    router = running(tmp_path, node).start()
    with Caller(router.port, "c") as caller:
        disk.code = errno.ENOSPC
        caller.say(Publish("b", b"2", 1, retain=True, packet_id=2))
        eventually(lambda: disk.refused > 1)
        node.close()
    disk.code = 0
    router.close()


def test_a_slow_disk_holds_up_its_router_and_not_the_node(tmp_path, disk):
    with (
        Node() as node,
        running(tmp_path, node) as router,
        Caller(router.port, "c") as caller,
    ):
        disk.is_free.clear()
        caller.say(Publish("b", b"2", 1, retain=True, packet_id=2))
        assert node.spawn(Echo).ask("x").result(5) == "x"
        disk.is_free.set()
        assert caller.hear_packets(1)[0].packet_id == 2
