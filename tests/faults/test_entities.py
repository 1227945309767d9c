"""Entities on real processes: killed, stopped, with a database that is away or full."""

import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from callboard.errors import EntityUnavailable, OutcomeUnknown
from callboard.lease.errors import StateUnavailable, UnsafeDatabase
from tests.callboard.entity.state.postgresql_server import (
    PostgresqlServer,
    new_server,
    running_server,
)
from tests.callboard.entity.state.stores import batch
from tests.faults import KILLS
from tests.faults.entity_host import Entry
from tests.faults.entity_load import Client, RowLoad


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
