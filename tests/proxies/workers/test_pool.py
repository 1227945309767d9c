"""Worker processes: actors on them, what happens when they end, and that nothing is left."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass, replace
from typing import ClassVar

import psutil
import pytest

from callboard import Actor, Child, Node, Supervisor, handler, message
from callboard.actors.errors import NodeClosed, NotSpawnable, RemoteError, WouldBlock
from callboard.events import LinkDown, WorkerEnded, WorkerStarted
from callboard.proxies.link.connector import Connector
from tests.proxies.cast import ROOT, eventually

pytestmark = pytest.mark.slow


@message("tests.workers.Where")
@dataclass(frozen=True)
class Where:
    pass


class Resident(Actor):
    """Knows the process that it lives in."""

    def __init__(self, start: int = 0) -> None:
        if start < 0:
            raise ValueError(start)
        self.total = start

    @handler
    def where(self, msg: Where) -> int:
        return os.getpid()

    @handler
    def block(self, _: str) -> None:
        threading.Event().wait()

    def add(self, k: int) -> int:
        self.total += k
        return self.total


class Stubborn(Actor):
    """Ends its process when it is made."""

    def __init__(self) -> None:
        os._exit(3)


@pytest.fixture(scope="module")
def employer():
    with Node("employer", spawnable={"resident": Resident}) as node:
        yield node, node.workers(2)


@pytest.fixture
def node(employer):
    return employer[0]


@pytest.fixture
def pool(employer):
    node, pool = employer
    eventually(lambda: len(pool) == 2)
    return pool


def test_a_worker_may_take_longer_to_start_than_others_to_greet(monkeypatch):
    config = Connector.config
    monkeypatch.setattr(
        Connector, "config", lambda *given: replace(config(*given), handshake_timeout=0.02)
    )
    with Node() as node:
        assert len(node.workers(1)) == 1


def pid_of(ref):
    return ref.ask(Where()).result(5)


def is_gone(pid):
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


@pytest.mark.quick
def test_actors_are_spread_over_processes(pool):
    refs = [pool.spawn(Resident, number) for number in range(4)]

    assert {pid_of(ref) for ref in refs} == {worker.pid for worker in pool}
    assert os.getpid() not in {pid_of(ref) for ref in refs}
    assert [ref.call(Resident.add, 1).result(5) for ref in refs] == [1, 2, 3, 4]


def test_one_worker_can_be_chosen_in_every_way(node, pool):
    first, second = pool

    assert pid_of(node.spawn(Resident, 7, on=first)) == first.pid
    assert pid_of(node.remote_spawn(second.node_id, "resident", 7)) == second.pid
    assert pid_of(node.spawn(Resident, on=pool)) in (first.pid, second.pid)
    assert {pid_of(ref) for ref in pool.spawn_each(Resident)} == {first.pid, second.pid}
    assert pool[0] is first


def test_awaitable_twins_do_the_same(pool):
    async def program():
        with pytest.raises(WouldBlock):
            pool.spawn(Resident)
        one = await pool.aspawn(Resident)
        return [one, *(await pool.aspawn_each(Resident))]

    assert len({pid_of(ref) for ref in asyncio.run(program())}) == 2


def test_an_init_that_raises_is_the_callers(pool):
    with pytest.raises(RemoteError, match="ValueError: -1"):
        pool.spawn(Resident, -1)


def test_classes_that_another_process_cannot_find_are_refused(node, pool):
    class Local(Actor):
        pass

    with pytest.raises(NotSpawnable, match="local to a function"):
        pool.spawn(Local)
    with pytest.raises(NotSpawnable, match="options of with_options"):
        node.spawn(Resident.with_options(trap_exit=True), on=pool)


def test_workers_reach_each_other_and_are_in_groups(node, pool):
    group = node.group("residents")
    for ref in pool.spawn_each(Resident):
        group.join(ref)

    assert {future.result(5) for future in group.ask_all(Where())} == {w.pid for w in pool}
    for ref in group:
        ref.stop()
    eventually(lambda: not group.members())


def test_a_killed_worker_is_noticed_at_once_and_replaced(node, pool):
    victim = pool[0]
    resident = node.spawn(Resident, on=victim)
    down, events = node.monitor(resident), []

    with node.subscribed(events.append):
        os.kill(victim.pid, signal.SIGKILL)
        assert down.result(5).reason == "unreachable"
        assert pool.spawn(Resident).ask(Where()).result(5) != victim.pid
        eventually(lambda: len(pool) == 2)
        eventually(lambda: any(isinstance(event, WorkerStarted) for event in events))

    ended = [event for event in events if isinstance(event, WorkerEnded)]
    started = [event for event in events if isinstance(event, WorkerStarted)]
    assert ended == [WorkerEnded(victim.name, victim.node_id, victim.pid, "killed by SIGKILL")]
    assert [event.name for event in started] == [victim.name]
    lost = [event.reason for event in events if isinstance(event, LinkDown)]
    assert len(lost) == 1
    assert "silent" not in lost[0]  # which would take three seconds
    assert victim.pid not in {worker.pid for worker in pool}


def test_supervised_children_move_to_another_worker(node, pool):
    supervisor = node.supervise([Child(Resident, 5, on=pool)], intensity=(5, 10.0))
    eventually(lambda: supervisor.call(Supervisor.children).result(5))
    [first] = supervisor.call(Supervisor.children).result(5)

    os.kill(pid_of(first), signal.SIGKILL)

    def has_moved():
        refs = supervisor.call(Supervisor.children).result(5)
        return bool(refs) and refs != [first]

    eventually(has_moved)
    [second] = supervisor.call(Supervisor.children).result(5)
    assert second.call(Resident.add, 1).result(5) == 6


def test_an_actor_that_ends_its_worker_fails_its_spawn_only(node, pool):
    with pytest.raises(ConnectionError):
        pool.spawn(Stubborn)

    assert pid_of(pool.spawn(Resident)) > 0


def test_nothing_is_left_when_the_node_is_closed():
    with Node("short") as node:
        pool = node.workers(2)
        pids = [worker.pid for worker in pool]
        blocked = pool.spawn(Resident)
        blocked.tell("for ever")

    assert all(is_gone(pid) for pid in pids)
    with pytest.raises(NodeClosed):
        asyncio.run(pool.aspawn(Resident))


PARENT = """
import signal, sys
from callboard import Node
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
node = Node("parent")
pool = node.workers(2)
print(*(worker.pid for worker in pool), flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_workers_end_when_their_parent_dies(how):
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with contextlib.closing(parent.stdin), contextlib.closing(parent.stdout):
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) == 2

        parent.send_signal(how)
        parent.wait(120)

        eventually(lambda: all(is_gone(pid) for pid in pids))


def test_fewer_than_one_is_refused(node):
    with pytest.raises(ValueError, match=r"workers\(0\): start at least one"):
        node.workers(0)


def test_a_simulated_node_has_no_processes(cluster):
    [simulated] = cluster(1)
    with pytest.raises(ValueError, match="is simulated"):
        simulated.workers(1)


def test_an_offered_class_that_cannot_be_loaded_is_told_before_anything_starts():
    class Local(Actor):
        pass

    with Node(spawnable={"local": Local}) as node, pytest.raises(NotSpawnable):
        node.workers(1)


class Slow(Actor):
    """Takes its time, and tells the node that started its process."""

    @handler
    async def reply(self, msg: tuple) -> None:
        ref, seconds = msg
        await self.sleep(seconds)
        ref.tell(os.getpid())


class Heard(Actor):
    heard: ClassVar[list[int]] = []

    @handler
    def pid(self, msg: int) -> None:
        self.heard.append(msg)


def test_draining_the_node_drains_its_workers():
    with Node("drained") as node:
        pool = node.workers(2)
        pids = sorted(worker.pid for worker in pool)
        heard = node.spawn(Heard)
        for slow in pool.spawn_each(Slow):
            slow.tell((heard, 0.3))

        report = node.drain(20)

    assert report.is_clean
    assert report.finished >= 2
    assert sorted(Heard.heard) == pids
    assert all(is_gone(pid) for pid in pids)


def test_what_workers_did_not_finish_in_time_is_reported():
    with Node("late") as node:
        slow = node.workers(1).spawn(Slow)
        slow.tell((node.spawn(Heard), 60.0))

        report = node.drain(0.5)

    assert report.left == 1
    assert report.seconds < 20


def test_a_pool_is_not_closed_by_blocking_an_event_loop(node, pool):
    async def program():
        with pytest.raises(WouldBlock, match=r"await pool\.aclose\("):
            pool.close()

    asyncio.run(program())
    assert len(pool) == 2


class Connecting(Actor):
    detached = True

    @handler
    def to(self, address: str) -> bytes:
        return self.node.connect(address)


def test_a_detached_actor_may_call_the_blocking_methods(node):
    with Node() as other:
        other.listen()

        assert node.spawn(Connecting).ask(other.address).result(10) == other.node_id
