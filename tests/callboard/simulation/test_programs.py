"""Programs of plain asyncio in a simulated cluster: streams, faults, time, chance, errors."""

import asyncio
import datetime
import os
import random
import secrets
import signal
import socket
import subprocess
import threading
import time
import uuid
from asyncio import sleep as rest  # in virtual time
from contextlib import closing
from functools import partial
from time import sleep as block

import pytest

from callboard import Actor, handler
from callboard.errors import ResultTimeout
from callboard.simulation import (
    Cluster,
    HostEnded,
    NotDeterministic,
    NotSimulated,
    always,
    cluster_test,
    crash,
    cut,
    delay,
    kill,
    loss,
    partition,
    pause,
    swarm,
)
from callboard.simulation.cluster_test import ClusterTest


async def echo(reader, writer):
    while line := await reader.readline():
        writer.write(line)
        await writer.drain()
    writer.close()


async def serve(handle=echo, address="0.0.0.0", port=7):
    server = await asyncio.start_server(handle, address, port)
    await server.serve_forever()


async def ask(text, host="echo", port=7):
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(text)
    answer = await reader.readline()
    writer.close()
    await writer.wait_closed()
    return answer


async def idle():
    await asyncio.Event().wait()


def test_two_programs_talk_by_streams(cluster):
    cluster.host("echo", serve)
    client = cluster.host("client", idle)

    assert client.run(ask, b"hello\n").result(5) == b"hello\n"
    assert 0.001 < cluster.now < 0.1


def test_a_port_that_nobody_has_refuses(cluster):
    cluster.host("echo", serve)
    client = cluster.host("client", idle)
    cluster.advance(1)

    with pytest.raises(ConnectionRefusedError):
        client.run(ask, b"", "echo", 8).result(5)


def test_a_server_on_the_loopback_is_seen_by_its_host_only(cluster):
    host = cluster.host("echo", serve, echo, "127.0.0.1")
    client = cluster.host("client", idle)
    cluster.advance(1)

    assert host.run(ask, b"a\n", "localhost").result(5) == b"a\n"
    with pytest.raises(ConnectionRefusedError):
        client.run(ask, b"a\n").result(5)


def test_a_name_that_no_host_has_is_not_found(cluster):
    client = cluster.host("client", idle)

    with pytest.raises(socket.gaierror, match="the simulated hosts are client"):
        client.run(ask, b"", "nowhere").result(5)


def test_a_crashed_host_is_not_reached_within_two_minutes(cluster):
    host = cluster.host("echo", serve)
    client = cluster.host("client", idle)
    cluster.advance(1)
    cluster.crash(host)

    with pytest.raises(TimeoutError):
        client.run(ask, b"a\n").result(200)
    assert 127 < cluster.now < 129


def test_half_closed_connections_answer_until_both_are_closed(cluster):
    async def shout(reader, writer):
        writer.write((await reader.read()).upper())
        writer.close()

    async def whisper():
        reader, writer = await asyncio.open_connection("shout", 7)
        writer.write(b"hel")
        writer.write(b"lo")
        writer.write_eof()
        return await reader.read()

    cluster.host("shout", serve, shout)

    assert cluster.host("client", whisper).result(5) == b"HELLO"


def test_a_reader_that_stands_still_holds_the_writer_up(cluster):
    async def lazy(reader, writer):
        await rest(60)
        await reader.readexactly(2_000_000)
        writer.write(b"all\n")

    async def eager():
        reader, writer = await asyncio.open_connection("lazy", 7)
        writer.write(bytes(2_000_000))
        buffered = writer.transport.get_write_buffer_size()
        began = time.monotonic()
        await writer.drain()
        return buffered, time.monotonic() - began, await reader.readline()

    cluster.host("lazy", serve, lazy)
    buffered, waited, answer = cluster.host("client", eager).result(100)

    assert buffered > 1_000_000
    assert 55 < waited < 65
    assert answer == b"all\n"


def test_to_write_to_a_closed_connection_is_reset(cluster):
    async def rude(reader, writer):
        writer.close()

    async def client():
        _, writer = await asyncio.open_connection("rude", 7)
        for _ in range(10):
            writer.write(b"anybody?")
            await rest(0.1)
            await writer.drain()

    cluster.host("rude", serve, rude)

    with pytest.raises((ConnectionResetError, BrokenPipeError)):
        cluster.host("client", client).result(5)


def test_reads_are_short_by_chance(cluster):
    sizes = set()

    async def count(reader, writer):
        while data := await reader.read(100):
            sizes.add(len(data))

    async def client():
        _, writer = await asyncio.open_connection("count", 7)
        for _ in range(100):
            writer.write(b"0123456789")
            await rest(0.01)

    cluster.host("count", serve, count)
    cluster.host("client", client).result(50)

    assert len(sizes) > 3


def test_protocols_and_transports_are_asyncios_own(cluster):
    events = []

    class Told(asyncio.Protocol):
        def connection_made(self, transport):
            events.append(("made", transport.get_extra_info("peername")[0]))
            transport.set_write_buffer_limits(high=10)

        def data_received(self, data):
            events.append(data)

        def pause_writing(self):
            events.append("pause")

        def resume_writing(self):
            events.append("resume")

        def eof_received(self):
            events.append("eof")

        def connection_lost(self, error):
            events.append(("lost", error))

    async def abort(reader, writer):
        await rest(1)
        await reader.readexactly(300_000)
        writer.write(b"x")
        await rest(1)
        writer.transport.abort()

    async def client():
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_connection(Told, "server", 7)
        transport.write(bytes(300_000))
        await rest(5)

    host = cluster.host("server", serve, abort)
    cluster.host("client", client).result(50)

    made = ("made", host.address)
    assert events == [made, "pause", "resume", b"x", "eof", ("lost", None)]


def test_datagrams_arrive_or_are_lost(cluster):
    taken = []

    class Take(asyncio.DatagramProtocol):
        def datagram_received(self, data, source):
            taken.append(data)

    async def listen():
        loop = asyncio.get_running_loop()
        await loop.create_datagram_endpoint(Take, local_addr=("0.0.0.0", 9))
        await asyncio.Event().wait()

    async def send():
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_datagram_endpoint(
            asyncio.DatagramProtocol, remote_addr=("taker", 9)
        )
        for number in range(100):
            transport.sendto(b"%d" % number)
            await rest(0.01)

    taker = cluster.host("taker", listen)
    sender = cluster.host("sender", idle)
    cluster.advance(1)
    cluster.loss(taker, sender, 0.3)
    sender.run(send).result(10)

    assert 40 < len(taken) < 95


# --- faults ---


def test_a_partition_holds_bytes_until_it_heals(cluster):
    host = cluster.host("echo", serve)
    client = cluster.host("client", idle)
    cluster.advance(1)
    cluster.partition(host, client)
    answer = client.run(ask, b"a\n")

    with pytest.raises(ResultTimeout):
        answer.result(10)
    cluster.heal()
    assert answer.result(5) == b"a\n"


def test_a_cut_resets_connections(cluster):
    host = cluster.host("echo", serve)
    client = cluster.host("client", idle)

    async def wait():
        reader, _ = await asyncio.open_connection("echo", 7)
        await reader.read()

    waiting = client.run(wait)
    cluster.advance(1)
    cluster.cut(host, client)

    with pytest.raises(ConnectionResetError):
        waiting.result(5)


def test_a_paused_host_answers_when_it_goes_on(cluster):
    host = cluster.host("echo", serve)
    client = cluster.host("client", idle)
    cluster.advance(1)
    cluster.pause(host)
    answer = client.run(ask, b"a\n")

    with pytest.raises(ResultTimeout):
        answer.result(10)
    cluster.resume(host)
    assert answer.result(1) == b"a\n"


def test_a_fast_clock_ends_a_sleep_early(cluster):
    async def nap():
        began = time.monotonic()
        await rest(10)
        return time.monotonic() - began

    host = cluster.host("fast", idle)
    cluster.clock_rate(host, 2.0)

    assert host.run(nap).result(20) == pytest.approx(10)
    assert cluster.now == pytest.approx(5, abs=0.01)


def test_a_killed_program_runs_nothing_more_and_starts_again(cluster):
    steps = []

    async def main():
        steps.append("starts")
        try:
            await rest(10)
        finally:
            steps.append("cleans up")

    host = cluster.host("victim", main)
    cluster.advance(1)
    cluster.kill(host)
    with pytest.raises(HostEnded, match="killed"):
        host.result(1)
    with pytest.raises(HostEnded, match="cluster.restart"):
        host.run(idle)
    cluster.restart(host)
    cluster.advance(1)

    assert steps == ["starts", "starts"]
    assert cluster.is_running(host)
    assert host.lives == 2


def test_a_crash_is_noticed_when_the_host_is_back(cluster):
    host = cluster.host("echo", serve)
    client = cluster.host("client", idle)

    async def wait():
        reader, writer = await asyncio.open_connection("echo", 7)
        writer.write(b"half")
        return await reader.read()

    waiting = client.run(wait)
    cluster.advance(1)
    cluster.crash(host)
    cluster.advance(60)
    assert not waiting.done()
    cluster.restart(host)

    with pytest.raises(ConnectionResetError):
        waiting.result(5)
    assert client.run(ask, b"a\n").result(5) == b"a\n"


def test_a_crash_keeps_what_a_program_synced(cluster):
    async def main(disk):
        log = disk().open("log", append=True)
        disk().sync_folder("/")
        log.write(b"kept")
        log.fsync()
        log.write(b" or not")
        await asyncio.Event().wait()

    host = cluster.host("db", main, lambda: cluster.disk(host))
    cluster.advance(1)
    cluster.crash(host)

    log = cluster.disk(host).open("log")
    assert log.pread(4, 0) == b"kept"
    assert log.size() <= 11


def test_a_slow_disk_holds_its_host_up(cluster):
    async def main(disk):
        log = disk().open("log", append=True)
        began = time.monotonic()
        log.write(b"slow")
        return time.monotonic() - began

    host = cluster.host("db", main, lambda: cluster.disk(host))
    cluster.disk(host).faults.latency = 0.5

    assert host.result(5) == pytest.approx(0.5)


def test_faults_of_a_plan_happen_to_hosts_beside_nodes():
    lives = []

    def scenario(cluster):
        a, b = cluster(2)
        host = cluster.host("server", serve)
        client = cluster.host("client", idle, mortal=False)
        assert cluster.machines() == [a, b, host, client]
        cluster.advance(20)
        lives.append((host.lives, client.lives))

    test = ClusterTest(scenario, 1, [kill(2, at=5), crash(2, at=9), kill(3, at=5)], twice=False)
    assert test.run("some", {}) is None
    assert lives == [(3, 1)]


class Echo(Actor):
    @handler
    def text(self, msg: str) -> str:
        return msg


def test_programs_and_actors_share_time_and_trace(cluster):
    a, b = cluster(2)
    ref = a.ref(str(b.spawn(Echo)))
    cluster.host("echo", serve)
    client = cluster.host("client", idle)
    line = client.run(ask, b"a\n")

    assert ref.ask("hi").result(5) == "hi"
    assert line.result(5) == b"a\n"
    lines = "\n".join(cluster.trace.lines())
    assert "client starts" in lines
    assert "10.1.0.1 connects to 10.1.0.0" in lines


# --- what a program finds ---


async def facts():
    return (
        *(time.time(), time.monotonic(), datetime.datetime.now(datetime.UTC).isoformat()),
        *(random.random(), random.Random().random(), random.SystemRandom().random()),
        *(uuid.uuid4(), uuid.uuid1(), secrets.token_hex(4), os.urandom(4), os.getpid()),
        *(socket.gethostname(), datetime.date.today(), time.strftime("%H:%M:%S")),
    )


def test_time_and_chance_come_from_the_seed():
    def live(seed):
        with closing(Cluster(seed)) as cluster:
            cluster.advance(2.5)
            return cluster.host("h", facts).result(1)

    assert live(1) == live(1)
    assert live(1)[3] != live(2)[3]
    assert live(1)[2].startswith("2026-01-01T00:00:02.5")


def test_the_real_ones_are_back_afterwards():
    before = (time.time, random.random, socket.socket, datetime.datetime, os.urandom)
    with closing(Cluster(1)) as cluster:
        cluster.host("h", idle)
        assert abs(time.time() - before[0]()) < 5
        assert isinstance(datetime.datetime.now(datetime.UTC), datetime.datetime)
        cluster.advance(1)
    assert (time.time, random.random, socket.socket, datetime.datetime, os.urandom) == before


def test_a_blocking_sleep_blocks_its_host_alone(cluster):
    seen = []

    async def tick(name):
        for _ in range(3):
            await rest(1)
            seen.append((name, cluster.now))

    async def sleeper():
        asyncio.create_task(tick("same"))
        await rest(0.5)
        block(5)
        seen.append(("slept", time.monotonic()))
        await rest(10)

    cluster.host("sleeper", sleeper)
    cluster.host("other", tick, "other")
    cluster.advance(12)

    assert ("other", 3.0) in seen
    assert ("slept", 5.5) in seen
    assert [at for name, at in seen if name == "same"] == [5.5, 6.5, 7.5]


def test_what_was_written_after_a_blocking_sleep_goes_out_after_it(cluster):
    async def slow(reader, writer):
        await reader.readline()
        block(5)
        writer.write(b"late\n")
        writer.close()

    cluster.host("slow", serve, slow)
    client = cluster.host("client", idle)

    assert client.run(ask, b"a\n", "slow").result(20) == b"late\n"
    assert cluster.now > 5


def test_functions_of_threads_run_in_virtual_time(cluster):
    async def main():
        began = time.monotonic()
        found = await asyncio.gather(
            *(asyncio.to_thread(block, 3), asyncio.to_thread(int, "7"))
        )
        return found, time.monotonic() - began

    found, took = cluster.host("h", main).result(10)

    assert found == [None, 7]
    assert took == pytest.approx(3, abs=0.1)


@pytest.mark.parametrize(
    ("call", "instead"),
    [
        (lambda: threading.Thread(target=int).start(), "asyncio.to_thread"),
        (lambda: subprocess.run(["true"], check=True), "cluster.host"),
        (lambda: socket.create_connection(("echo", 7)), "open_connection"),
        (lambda: socket.socket().connect(("echo", 7)), "open_connection"),
        (lambda: threading.Event().wait(1), "asyncio.to_thread"),
        (lambda: signal.alarm(1), "loop.call_later"),
    ],
)
def test_what_a_host_has_not_is_refused(cluster, call, instead):
    async def main():
        call()

    with pytest.raises(NotSimulated, match=instead) as raised:
        cluster.host("h", main).result(5)
    assert "host 'h'" in str(raised.value)


def test_signals_reach_handlers_or_end_the_program(cluster):
    async def main():
        stopped = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
        await stopped.wait()
        return "clean"

    handled, other = cluster.host("handled", main), cluster.host("other", idle)
    cluster.advance(1)
    handled.signal()
    other.signal(signal.SIGKILL)

    assert handled.result(1) == "clean"
    with pytest.raises(HostEnded, match="signal 9"):
        other.result(1)


# --- errors ---


def test_an_error_of_main_is_the_tests(cluster):
    async def main():
        await rest(1)
        raise LookupError("nothing there")

    cluster.host("h", main)

    with pytest.raises(LookupError) as raised:
        cluster.advance(5)
    assert raised.value.__notes__ == ["on host 'h', 1.000000 s"]
    cluster.advance(5)


def test_a_program_that_fails_starts_again_where_it_is_wanted(cluster):
    async def main():
        await rest(1)
        raise LookupError

    host = cluster.host("h", main, respawn=1.0)
    cluster.advance(5.5)

    assert host.lives == 3


def test_what_always_holds_is_checked_in_tasks_of_programs(cluster):
    async def handle(reader, writer):
        always(condition=False, what="nobody calls")

    cluster.host("server", serve, handle)
    client = cluster.host("client", idle)

    with pytest.raises(AssertionError, match="nobody calls"):
        client.run(ask, b"", "server").result(5)


def test_a_loop_without_an_end_does_not_hold_up_time(cluster):
    async def busy():
        while time.monotonic() < 1:
            await asyncio.sleep(0)

    async def blocked():
        while time.monotonic() < 1:
            pass

    cluster.host("busy", busy).result(5)
    cluster.host("blocked", blocked).result(5)

    assert cluster.now < 3


# --- the kit ---


def test_many_seeds_under_all_faults_are_the_same_twice():
    async def client(answers):
        while True:
            try:
                async with asyncio.timeout(random.uniform(0.1, 3)):
                    answers.append(await ask(b"%f\n" % random.random()))
            except OSError:
                pass
            await rest(0.5)

    def scenario(cluster):
        cluster(2)
        answers = []
        cluster.host("echo", serve)
        for number in range(2):
            cluster.host(f"c{number}", client, answers)
        cluster.advance(30)
        cluster.trace.note(cluster.now, "test", *answers)

    test = ClusterTest(scenario, list(range(4)), swarm(), twice=True)
    assert test.run("some", {}) is None


def test_the_real_clock_of_a_test_is_still_suspected():
    def scenario(cluster):
        cluster.host("h", facts)
        cluster.trace.note(0, "test", time.time())

    with pytest.raises(NotDeterministic, match=r"time.time\(\) in test_programs.py") as raised:
        ClusterTest(scenario, 1, [], twice=True).run("some", {})
    assert "random" not in str(raised.value)


@cluster_test(seeds=5, faults=swarm(partition, cut, delay, loss, pause))
def test_programs_live_seeds(cluster):
    cluster.host("echo", serve)
    client = cluster.host("client", idle)
    client.run(partial(ask, b"a\n"))
    cluster.advance(10)
