"""Entities on real processes: killed, stopped, with a database that is away or full."""

import os
import random
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from callboard import Node
from callboard.errors import AskTimeout, EntityUnavailable, JobLost, OutcomeUnknown
from callboard.lease.errors import StateUnavailable, UnsafeDatabase
from tests.callboard.entity.state.postgresql_server import (
    PostgresqlServer,
    new_server,
    running_server,
)
from tests.callboard.entity.state.stores import batch
from tests.faults import KILLS
from tests.faults.entity_host import Alarm, Entry, Ledger, SetAlarm

KEYS = 40


class Client:
    """A node that hosts none, the processes that do, and a load with its account."""

    def __init__(self, stack: ExitStack, url: str) -> None:
        self.url = url
        self.node = stack.enter_context(Node("client"))
        self.node.listen("127.0.0.1", 0)
        self.refs = [self.node.entity(Ledger, f"k-{i}") for i in range(KEYS)]
        #: For each key: numbers that were acknowledged, and that perhaps happened.
        self.acknowledged: list[list[int]] = [[] for _ in range(KEYS)]
        self.unknown: list[set[int]] = [set() for _ in range(KEYS)]
        self.unavailable = 0
        self._ends = threading.Event()
        self._threads: list[threading.Thread] = []
        self._processes: list[subprocess.Popen[str]] = []
        stack.callback(self.close)

    def close(self) -> None:
        self._ends.set()
        for thread in self._threads:
            thread.join(30)
        for process in self._processes:
            process.kill()
            process.communicate()

    def host(self, *options: str) -> subprocess.Popen[str]:
        """Start a process that hosts; returns when it is a member."""
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.entity_host", self.node.address, self.url]
            + list(options),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._processes.append(process)
        assert process.stdout is not None
        assert process.stdout.readline().strip(), "the host did not start"
        return process

    def load(self) -> None:
        """Let numbers be entered, each key by one thread, until `stop`."""
        self._threads = [threading.Thread(target=self._enter, args=(i,)) for i in range(4)]
        for thread in self._threads:
            thread.start()

    def _enter(self, place: int) -> None:
        mine = range(place, KEYS, 4)
        following = dict.fromkeys(mine, 1)
        while not self._ends.is_set():
            asks = [(i, self.refs[i].ask(Entry(following[i]), timeout=10.0)) for i in mine]
            for i, ask in asks:
                try:
                    ask.result(20)
                    self.acknowledged[i].append(following[i])
                except EntityUnavailable:
                    self.unavailable += 1
                    continue  # nothing happened: the same number again
                except (OutcomeUnknown, AskTimeout):
                    self.unknown[i].add(following[i])
                following[i] += 1

    def stop(self) -> None:
        """End the load."""
        self._ends.set()
        for thread in self._threads:
            thread.join(30)

    def until_all_answer(self) -> float:
        """Return the seconds until every key has answered a read that began from here on.

        All are asked at once, and those that fail or take long are asked again.
        """
        began, waiting = time.monotonic(), self.refs
        while waiting:
            asks = [(ref, ref.ask("all", timeout=0.25)) for ref in waiting]
            waiting = []
            for ref, ask in asks:
                try:
                    ask.result(10)
                except (EntityUnavailable, OutcomeUnknown, AskTimeout):
                    waiting.append(ref)
            assert time.monotonic() - began < 30, "not within 30 s"
        return time.monotonic() - began

    def check(self) -> int:
        """Compare what is kept with what was acknowledged; returns how many that were."""
        for i, ref in enumerate(self.refs):
            kept = ref.ask("all", timeout=10.0).result(20)
            assert kept == sorted(set(kept)), f"k-{i}: twice or out of order"
            missing = set(self.acknowledged[i]) - set(kept)
            assert not missing, f"k-{i} lost {missing}"
            extra = set(kept) - set(self.acknowledged[i]) - self.unknown[i]
            assert not extra, f"k-{i} has {extra}, of which it was said that nothing happened"
        total = sum(map(len, self.acknowledged))
        assert total > KEYS
        return total


@pytest.fixture
def client(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Client]:
    """A client on SQLite or PostgreSQL, or on a URL of the test's."""
    kind = getattr(request, "param", "postgresql")
    url = f"sqlite:{tmp_path}/state.db"
    if kind == "postgresql":
        url = running_server().new_database()
    with ExitStack() as stack:
        yield Client(stack, url)


@pytest.fixture
def server() -> Iterator[PostgresqlServer]:
    """A server of the test's own, that it may kill."""
    made = new_server().start()
    yield made
    made.close()


@pytest.mark.parametrize("client", ["sqlite", "postgresql"], indirect=True)
@pytest.mark.timeout(60 + 20 * KILLS)
def test_a_killed_host_is_replaced_under_load(
    client: Client, figure: Callable[[str], None]
) -> None:
    rng = random.Random(7)
    hosts = [client.host(), client.host()]
    client.load()
    seconds = []
    for _ in range(KILLS):
        time.sleep(rng.uniform(0.3, 1.0))
        victim = hosts.pop(rng.randrange(2))
        victim.kill()
        victim.wait()
        seconds.append(client.until_all_answer())
        hosts.append(client.host())
    client.stop()
    total = client.check()
    where = client.url.partition(":")[0]
    figure(
        f"{where}: {KILLS} kills, {total} acknowledged, none lost or twice; all keys answered "
        f"after {statistics.median(seconds):.2f} s ({min(seconds):.2f} to {max(seconds):.2f})"
    )


@pytest.mark.parametrize("client", ["sqlite", "postgresql"], indirect=True)
@pytest.mark.timeout(60 + 20 * KILLS)
def test_one_killed_host_of_four_is_replaced_at_once(
    client: Client, figure: Callable[[str], None]
) -> None:
    rng = random.Random(5)
    hosts = [client.host() for _ in range(4)]
    client.load()
    seconds = []
    for _ in range(KILLS):
        time.sleep(2.5)  # until each has seen the others' leases rise
        victim = hosts.pop(rng.randrange(4))
        victim.kill()
        victim.wait()
        seconds.append(client.until_all_answer())
        hosts.append(client.host())
    client.stop()
    total = client.check()
    where = client.url.partition(":")[0]
    figure(
        f"{where}: one of four killed, {KILLS} times; {total} acknowledged; all keys answered "
        f"after {statistics.median(seconds):.2f} s ({min(seconds):.2f} to {max(seconds):.2f})"
    )


class RowLoad:
    """Reminders and jobs under way, with their account."""

    def __init__(self, client: Client) -> None:
        self.node = client.node
        self.alarms = [self.node.entity(Alarm, f"a-{i}") for i in range(8)]
        #: For each alarm: numbers whose reminder was acknowledged.
        self.set: list[list[int]] = [[] for _ in self.alarms]
        self.queue = self.node.queue("faults")
        self.put: set[int] = set()
        self.acknowledged: set[int] = set()
        #: Jobs that were handed out after they had been acknowledged.
        self.again: set[int] = set()
        self.unknown: set[int] = set()
        self._ends = threading.Event()
        work = (self._remind, self._produce, self._take, self._take)
        self._threads = [threading.Thread(target=each) for each in work]
        for thread in self._threads:
            thread.start()

    def _remind(self) -> None:
        number = 0
        while not self._ends.is_set():
            number += 1
            asks = [
                each.ask(SetAlarm(number, 0.1 * (number % 20)), timeout=10.0)
                for each in self.alarms
            ]
            for i, ask in enumerate(asks):
                if ask.exception(20) is None:
                    self.set[i].append(number)

    def _produce(self) -> None:
        number = 0
        while not self._ends.is_set():
            numbers = range(number + 1, number + 11)
            for number, put in [(n, self.queue.put(n)) for n in numbers]:
                if put.exception(60) is None:
                    self.put.add(number)

    def _take(self) -> None:
        while True:
            try:
                job = self.queue.take(visible_after=2.0, timeout=3.0).result(60)
            except AskTimeout:
                if self._ends.is_set():
                    return
                continue
            if job.value in self.acknowledged:
                self.again.add(job.value)
            error = job.ack().exception(60)
            if error is None:
                self.acknowledged.add(job.value)
            else:
                assert isinstance(error, JobLost | OutcomeUnknown | EntityUnavailable)
                self.unknown.add(job.value)

    def check(self) -> tuple[int, int]:
        """End the load, wait for what is due, and compare; returns reminders and jobs."""
        self._ends.set()
        for thread in self._threads:
            thread.join(90)
        for i, alarm in enumerate(self.alarms):
            deadline = time.monotonic() + 30
            while True:
                rung = alarm.ask("all", timeout=10.0).result(20)
                missed = set(self.set[i]) - set(rung)
                if not missed:
                    break
                assert time.monotonic() < deadline, f"a-{i} missed {missed}"
            assert len(rung) == len(set(rung)), f"a-{i}: written twice"
        assert not self.again, "acknowledged jobs came again"
        lost = self.put - self.acknowledged - self.unknown
        assert not lost, f"jobs were lost: {lost}"
        return sum(map(len, self.set)), len(self.acknowledged)


@pytest.mark.parametrize("client", ["sqlite", "postgresql"], indirect=True)
@pytest.mark.timeout(180 + 20 * KILLS)
def test_no_reminder_is_missed_and_no_acknowledged_job_comes_again_under_kills(
    client: Client, figure: Callable[[str], None]
) -> None:
    rng = random.Random(11)
    hosts = [client.host("rows"), client.host("rows")]
    load = RowLoad(client)
    for number in range(KILLS):
        time.sleep(rng.uniform(0.3, 1.0))
        killed = hosts if number % 3 == 2 else [hosts.pop(rng.randrange(2))]
        for victim in list(killed):  # every third time all at once
            victim.kill()
            victim.wait()
        hosts = [each for each in hosts if each.poll() is None]
        while len(hosts) < 2:
            hosts.append(client.host("rows"))
    time.sleep(0.5)
    reminders, jobs = load.check()
    assert reminders > 20
    assert jobs > 20
    where = client.url.partition(":")[0]
    figure(
        f"{where}: {KILLS} kills, {reminders} reminders, 0 missed; {jobs} jobs acknowledged, "
        f"none came again; {len(load.unknown)} acknowledgements of unknown outcome"
    )


@pytest.mark.timeout(120)
def test_a_taker_that_was_stopped_learns_that_its_job_is_anothers(
    client: Client, figure: Callable[[str], None]
) -> None:
    client.host("rows")
    queue = client.node.queue("faults")
    queue.put("slow").result(20)
    taker = subprocess.Popen(
        [sys.executable, "-m", "tests.faults.job_taker", client.node.address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert taker.stdout is not None
        assert taker.stdout.readline().strip() == "took slow 1"
        os.kill(taker.pid, signal.SIGSTOP)
        began = time.monotonic()
        job = queue.take().result(60)
        seconds = time.monotonic() - began
        assert (job.value, job.attempt) == ("slow", 2)
        os.kill(taker.pid, signal.SIGCONT)
        assert taker.stdin is not None
        taker.stdin.write("ack\n")
        taker.stdin.flush()
        assert taker.stdout.readline().strip() == "JobLost"
        job.ack().result(20)
    finally:
        taker.kill()
        taker.communicate()
    figure(f"the job of a stopped taker went to another after {seconds:.2f} s")


@pytest.mark.parametrize("signals", ["STOP", "STOP inside a commit"])
@pytest.mark.timeout(120)
def test_a_stopped_host_is_replaced_and_writes_nothing_when_it_wakes(
    client: Client, signals: str, figure: Callable[[str], None]
) -> None:
    is_inside = "inside" in signals
    victim = client.host(*(["stop"] if is_inside else []))
    client.host()
    client.until_all_answer()
    client.load()
    time.sleep(0.5)
    os.kill(victim.pid, signal.SIGUSR1 if is_inside else signal.SIGSTOP)
    while Path(f"/proc/{victim.pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        time.sleep(0.001)
    seconds = client.until_all_answer()
    time.sleep(1.0)
    os.kill(victim.pid, signal.SIGCONT)
    time.sleep(2.0)
    client.stop()
    total = client.check()
    figure(f"SIG{signals}: all keys answered after {seconds:.2f} s; {total} acknowledged")


@pytest.mark.timeout(60 + 20 * KILLS)
def test_nothing_acknowledged_is_lost_while_postgresql_restarts(
    server: PostgresqlServer, figure: Callable[[str], None]
) -> None:
    with ExitStack() as stack:
        client = Client(stack, server.new_database())
        client.host()
        client.host()
        client.load()
        seconds = []
        for away in [0.0, 1.0] * max(1, KILLS // 2):
            time.sleep(0.7)
            server.kill()
            time.sleep(away)
            server.start()
            seconds.append(client.until_all_answer())
        client.stop()
        total = client.check()
        figure(
            f"PostgreSQL killed {len(seconds)} times: all keys answered "
            f"{statistics.median(seconds):.2f} s after its start ({min(seconds):.2f} to "
            f"{max(seconds):.2f}); {total} acknowledged, {client.unavailable} unavailable, "
            f"{sum(map(len, client.unknown))} of unknown outcome"
        )


@pytest.mark.timeout(120)
def test_handlers_fail_with_a_clear_error_while_the_server_is_away(
    server: PostgresqlServer, figure: Callable[[str], None]
) -> None:
    with ExitStack() as stack:
        client = Client(stack, server.new_database())
        client.host()
        ref, idle = client.refs[0], client.refs[1]
        assert ref.ask(Entry(1)).result(10) == 1
        server.kill()
        began = time.monotonic()
        with pytest.raises((EntityUnavailable, OutcomeUnknown), match="PostgreSQL"):
            ref.ask(Entry(2), timeout=30.0).result(40)
        written = time.monotonic() - began
        with pytest.raises((EntityUnavailable, OutcomeUnknown), match="PostgreSQL"):
            ref.ask("all", timeout=30.0).result(40)
        with pytest.raises((EntityUnavailable, OutcomeUnknown), match="PostgreSQL"):
            idle.ask("all", timeout=30.0).result(40)
        server.start()
        client.until_all_answer()
        assert ref.ask(Entry(3)).result(10) >= 2
        assert ref.ask("all").result(10) in ([1, 3], [1, 2, 3])
        figure(f"server away: a handler that persists fails after {written:.2f} s")


def test_a_server_that_is_killed_and_started_again_is_used_on(
    server: PostgresqlServer,
) -> None:
    from callboard.entity.state.postgresql import PostgresqlState

    state = PostgresqlState(server.new_database(), "a")
    state.claim("Cart", {1: 1})
    state.commit([batch(1, [1])])
    server.kill()
    with pytest.raises(StateUnavailable):
        state.fences([("Cart", 1)])
    server.start()
    assert state.commit([batch(1, [2])]).positions == {"Cart": 2}
    assert [e.number for e in state.recover("Cart", "k-1", 1).events] == [1, 2]
    state.close()
    server.kill()
    server.start("fsync=off")
    with pytest.raises(UnsafeDatabase, match="fsync is off"):
        PostgresqlState(state.url, "a")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)],
        check=False,
        capture_output=True,
    )
    if mounted.returncode:
        pytest.skip("mounting a small file system needs root")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.timeout(120)
def test_a_full_disk_fails_handlers_and_loses_nothing_acknowledged(
    small_disk: Path, figure: Callable[[str], None]
) -> None:
    ballast = small_disk / "ballast"
    with ExitStack() as stack:
        client = Client(stack, f"sqlite:{small_disk}/state.db")
        client.host()
        ref = client.refs[0]
        assert ref.ask(Entry(0)).result(10) == 1
        with pytest.raises(OSError, match="No space left"):
            ballast.write_bytes(bytes(4 << 20))
        os.truncate(ballast, ballast.stat().st_size - (128 << 10))
        acknowledged = [0]

        def enter_all() -> None:
            for number in range(1, 100_000):
                ref.ask(Entry(number), timeout=30.0).result(40)
                acknowledged.append(number)

        with pytest.raises(EntityUnavailable, match="full"):
            enter_all()
        assert ref.ask("all").result(10) == acknowledged
        with pytest.raises(EntityUnavailable, match="full"):
            ref.ask(Entry(-1)).result(10)
        ballast.unlink()
        assert ref.ask(Entry(acknowledged[-1] + 1)).result(10) == len(acknowledged) + 1
        kept = ref.ask("all").result(10)
        assert kept == [*acknowledged, acknowledged[-1] + 1]
        figure(f"full disk: {len(acknowledged)} acknowledged and kept; goes on with room")
