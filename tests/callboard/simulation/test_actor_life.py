"""Chance, threads and blocking calls in actors of simulated nodes."""

import asyncio
import concurrent.futures
import os
import random
import secrets
import socket
import subprocess
import threading
import time
import urllib.request
import uuid
from random import randint  # noqa: TID251
from uuid import uuid4

import pytest

from callboard import Actor, handler, simulation
from callboard.errors import RemoteError
from callboard.simulation import Cluster, NotSimulated

DRAWN = {
    "uuid4": lambda: uuid.uuid4().hex,
    "uuid4 by its name": lambda: uuid4().hex,
    "uuid1": lambda: uuid.uuid1().hex,
    "urandom": lambda: os.urandom(8),
    "secrets": lambda: secrets.token_hex(),
    "random": lambda: random.random(),  # noqa: TID251
    "randint by its name": lambda: randint(0, 10**9),
    "shuffle": lambda: random.sample(range(1000), 10),
    "a generator": lambda: random.Random().random(),
    "the system's generator": lambda: random.SystemRandom().random(),
}


def thread():
    threading.Thread(target=print).start()


def pool():
    with concurrent.futures.ThreadPoolExecutor() as executor:
        executor.submit(print).result()


REFUSED = {
    "a thread": thread,
    "a timer": lambda: threading.Timer(1.0, print).start(),
    "a pool": pool,
    "an event": lambda: threading.Event().wait(0.1),
    "a socket": lambda: socket.socket(),
    "a connection": lambda: socket.create_connection(("127.0.0.1", 9)),
    "a library that connects": lambda: urllib.request.urlopen("http://127.0.0.1:9/"),
    "a process": lambda: subprocess.run(["true"]),
    "a shell": lambda: os.system("true"),
}


def slept(seconds):
    began = time.monotonic(), time.time()  # noqa: TID251
    time.sleep(seconds)
    return time.monotonic() - began[0], time.time() - began[1]  # noqa: TID251


class Caller(Actor):
    """Calls functions in a handler, or as if on a thread."""

    @handler
    def call_here(self, function: str) -> object:
        return {**DRAWN, **REFUSED}[function]()

    @handler
    async def call_there(self, order: tuple[str, str]) -> object:
        how, name = order
        function = {**DRAWN, **REFUSED, **WORK}[name]
        if how == "to_thread":
            return await asyncio.to_thread(function)
        loop = asyncio.get_running_loop()
        with concurrent.futures.ThreadPoolExecutor() as own:
            return await loop.run_in_executor(own if how == "own" else None, function)

    @handler
    async def all_at_once(self, count: int) -> list[object]:
        order: list[object] = []

        def work(number):
            order.append(number)
            time.sleep(0.1)
            return number

        began = asyncio.get_running_loop().time()
        answers = await asyncio.gather(*(asyncio.to_thread(work, n) for n in range(count)))
        return [answers, order, asyncio.get_running_loop().time() - began]


def fails():
    raise KeyError("gone")


def where():
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return "no loop"
    return "a loop"


WORK = {
    "sum": lambda: sum(range(100_000)),
    "sleep": lambda: slept(0.5),
    "fails": fails,
    "where": where,
}


def asked(message, seed=1):
    """Ask an actor on another simulated node; returns the answer and the virtual seconds."""
    cluster = Cluster(seed)
    try:
        here, there = cluster(2)
        ref = here.ref(str(there.spawn(Caller)))
        began = cluster.now
        return ref.ask(message, timeout=30).result(30), cluster.now - began
    finally:
        cluster.close()


@pytest.mark.parametrize("name", DRAWN)
def test_chance_in_an_actor_follows_the_seed(name):
    assert asked(name) == asked(name)
    assert asked(name)[0] != asked(name, seed=2)[0]


@pytest.mark.parametrize("name", DRAWN)
def test_chance_on_a_thread_of_an_actor_follows_the_seed(name):
    order = ("to_thread", name)
    assert asked(order) == asked(order)
    assert asked(order)[0] != asked(order, seed=2)[0]


def test_each_node_and_each_call_draws_for_itself():
    cluster = Cluster(1)
    try:
        nodes = cluster(3)
        refs = [node.spawn(Caller) for node in nodes]
        drawn = {ref.ask("uuid4").result(5) for ref in refs * 5}
        assert len(drawn) == 15
    finally:
        cluster.close()


@pytest.mark.parametrize("how", ["to_thread", "executor", "own"])
def test_a_function_on_a_thread_runs_in_virtual_time(how):
    began = time.perf_counter()
    answers = [asked((how, "sleep"), seed) for seed in (1, 1)]

    (shown, date), passed = answers[0]
    assert answers[0] == answers[1]
    assert shown == pytest.approx(0.5)
    assert date == pytest.approx(0.5)
    assert 0.5 < passed < 0.6
    assert asked((how, "sum"))[0] == sum(range(100_000))
    assert asked((how, "where"))[0] == "no loop"
    assert time.perf_counter() - began < 60  # nothing sleeps for real; a hang ends sooner
    with pytest.raises(RemoteError, match="gone"):
        asked((how, "fails"))


def test_functions_on_threads_sleep_beside_each_other():
    first, again, other = (asked(8, seed)[0] for seed in (1, 1, 2))

    answers, order, passed = first
    assert first == again
    assert list(answers) == [*range(8)]
    assert sorted(order) == [*range(8)]
    assert order != other[1]  # the seed decides who begins
    assert 0.1 <= passed < 0.11


@pytest.mark.parametrize("name", REFUSED)
def test_what_needs_a_thread_or_a_socket_is_refused_in_an_actor(name):
    with pytest.raises(RemoteError, match="NotSimulated") as error:
        asked(name)
    assert "node 'b':" in str(error.value)
    with pytest.raises(RemoteError, match="NotSimulated"):
        asked(("to_thread", name))


def test_a_sleep_in_a_handler_passes_in_virtual_time():
    class Sleeper(Actor):
        @handler
        def doze(self, seconds: float) -> float:
            time.sleep(seconds)
            return time.monotonic()

    cluster = Cluster(1)
    try:
        (node,) = cluster(1)
        ref = node.spawn(Sleeper)
        real, began = time.perf_counter(), cluster.now
        shown = [ref.ask(1.0).result(30) for _ in range(20)]
        assert shown == pytest.approx([began + number for number in range(1, 21)], abs=0.1)
        assert cluster.now - began > 18
        assert time.perf_counter() - real < 20
    finally:
        cluster.close()


def test_a_cancelled_wait_does_not_call_the_function():
    called = []

    class Canceller(Actor):
        @handler
        async def go(self, _m: int) -> None:
            task = asyncio.ensure_future(asyncio.to_thread(called.append, 1))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.sleep(1)

    cluster = Cluster(1)
    try:
        (node,) = cluster(1)
        node.spawn(Canceller).ask(1).result(30)
        assert called == []
    finally:
        cluster.close()


def test_the_test_itself_has_real_threads_chance_and_sockets():
    cluster = Cluster(1)
    try:
        (node,) = cluster(1)
        node.spawn(Caller).ask("random").result(5)
        ran = threading.Event()
        threading.Thread(target=ran.set).start()
        assert ran.wait(10)
        socket.socket().close()
        assert os.urandom(16) != os.urandom(16)
        random.seed(5)
        assert random.random() == random.Random(5).random()  # noqa: TID251
    finally:
        cluster.close()


def test_not_simulated_is_one_class():
    assert issubclass(NotSimulated, NotImplementedError)


def test_hosts_of_plain_programs_are_refused_by_their_former_names():
    cluster = Cluster(1)
    try:
        with pytest.raises(NotSimulated, match=r"host\('db', .*simulates nodes only"):
            cluster.host("db", print)
    finally:
        cluster.close()
    for name in ("SimulatedHost", "HostEnded"):
        with pytest.raises(ImportError, match=f"{name}: release 0.2 simulates nodes only"):
            getattr(simulation, name)
    with pytest.raises(AttributeError, match="no attribute 'Unknown'"):
        simulation.Unknown  # noqa: B018
