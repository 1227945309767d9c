"""`loop.sock_*` and TLS in programs of simulated hosts, and what is refused beside them."""

import asyncio
import io
import os
import socket
import ssl
from asyncio import sleep as rest  # in virtual time
from functools import partial

import pytest

from callboard.simulation import NotSimulated
from tests.proxies.papers import Papers


async def idle():
    await asyncio.Event().wait()


def listening(port):
    sock = socket.socket()
    sock.setblocking(False)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("0.0.0.0", port))
    sock.listen(5)
    return sock


async def connected(port):
    sock = socket.socket()
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, ("server", port))
    return sock


async def exactly(sock, size):
    loop, parts = asyncio.get_running_loop(), b""
    while len(parts) < size:
        part = await loop.sock_recv(sock, size - len(parts))
        if not part:
            break
        parts += part
    return parts


def test_bytes_pass_by_calls_of_the_loop(cluster):
    sent = os.urandom(500_000)  # more than a window: sending waits

    async def server():
        loop = asyncio.get_running_loop()
        with listening(7) as door:
            sock, source = await loop.sock_accept(door)
            buffer = bytearray(100)
            with sock:
                got = b""
                while size := await loop.sock_recv_into(sock, buffer):
                    got += buffer[:size]
                await loop.sock_sendall(sock, got[::-1])
            return source

    async def client():
        loop = asyncio.get_running_loop()
        with await connected(7) as sock:
            await loop.sock_sendall(sock, sent)
            sock.shutdown(socket.SHUT_WR)
            return await exactly(sock, len(sent)), sock.getsockname()

    host = cluster.host("server", server)
    cluster.advance(0.1)
    got, address = cluster.host("client", client).result(60)

    assert got == sent[::-1]
    assert host.result(5) == address


def test_datagrams_pass_by_calls_of_the_loop(cluster):
    async def server():
        loop = asyncio.get_running_loop()
        with socket.socket(type=socket.SOCK_DGRAM) as sock:
            sock.setblocking(False)
            sock.bind(("0.0.0.0", 9))
            buffer = bytearray(100)
            size, source = await loop.sock_recvfrom_into(sock, buffer)
            await loop.sock_sendto(sock, bytes(buffer[:size]).upper(), source)

    async def client():
        loop = asyncio.get_running_loop()
        with socket.socket(type=socket.SOCK_DGRAM) as sock:
            sock.setblocking(False)
            await loop.sock_sendto(sock, b"hello", ("server", 9))
            return await loop.sock_recvfrom(sock, 100)

    host = cluster.host("server", server)
    cluster.advance(0.1)

    assert cluster.host("client", client).result(5) == (b"HELLO", (host.address, 9))


def test_a_file_is_sent_in_pieces(cluster):
    content = b"0123456789" * 30_000

    async def server():
        loop = asyncio.get_running_loop()
        with listening(7) as door:
            sock, _ = await loop.sock_accept(door)
            with sock:
                return await loop.sock_sendfile(sock, io.BytesIO(content))

    async def client():
        with await connected(7) as sock:
            return await exactly(sock, 1 << 30)

    host = cluster.host("server", server)
    cluster.advance(0.1)

    assert cluster.host("client", client).result(60) == content
    assert host.result(5) == len(content)


def test_a_cut_is_an_error_of_the_call_that_waits(cluster):
    async def server():
        with listening(7) as door:
            sock, _ = await asyncio.get_running_loop().sock_accept(door)
            with sock:
                await rest(60)

    async def client():
        with await connected(7) as sock:
            return await asyncio.get_running_loop().sock_recv(sock, 1)

    hosts = cluster.host("server", server), cluster.host("client", client)
    cluster.advance(1)
    cluster.cut(*hosts)

    with pytest.raises(ConnectionResetError):
        hosts[1].result(5)


def test_a_wait_that_is_cancelled_leaves_the_socket_of_use(cluster):
    async def server():
        loop = asyncio.get_running_loop()
        with listening(7) as door:
            sock, _ = await loop.sock_accept(door)
            with sock:
                await rest(2)
                await loop.sock_sendall(sock, b"late")

    async def client():
        loop = asyncio.get_running_loop()
        with await connected(7) as sock:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(loop.sock_recv(sock, 4), 1)
            return await exactly(sock, 4)

    cluster.host("server", server)

    assert cluster.host("client", client, respawn=0.1).result(9) == b"late"


@pytest.mark.parametrize(
    "call",
    [
        lambda sock: sock.recv(1),
        lambda sock: sock.send(b"a"),
        lambda sock: sock.recv_into(bytearray(1)),
        lambda sock: sock.sendall(b"a"),
        lambda sock: sock.makefile(),
        lambda sock: sock.detach(),
        lambda sock: ssl.create_default_context().wrap_socket(sock, server_hostname="a"),
    ],
)
def test_what_blocks_on_a_socket_is_refused(cluster, call):
    async def server():
        with listening(7) as door:
            await asyncio.get_running_loop().sock_accept(door)
            await rest(60)

    async def client():
        with await connected(7) as sock:
            sock.setblocking(True)
            call(sock)

    cluster.host("server", server)
    cluster.advance(0.1)

    with pytest.raises(NotSimulated, match="use asyncio: open_connection"):
        cluster.host("client", client).result(5)


# --- TLS ---


@pytest.fixture(scope="module")
def tls(tmp_path_factory):
    papers = Papers(tmp_path_factory.mktemp("tls") / "papers")
    serving = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    serving.load_cert_chain(papers.issue("server"))
    asking = ssl.create_default_context(cafile=papers.folder / "authority.pem")
    return serving, asking


async def echo(reader, writer):
    while line := await reader.readline():
        writer.write(line)
        await writer.drain()
    writer.close()


async def serve(talk=echo, **options):
    async with await asyncio.start_server(talk, "0.0.0.0", 7, **options) as server:
        await server.serve_forever()


async def ask(text, host="server", **options):
    reader, writer = await asyncio.open_connection(host, 7, **options)
    writer.write(text)
    answer = await reader.readline()
    found = writer.get_extra_info("peercert"), writer.get_extra_info("cipher")
    writer.close()
    await writer.wait_closed()
    return answer, all(found)


def test_streams_speak_tls(cluster, tls):
    serving, asking = tls
    cluster.host("server", partial(serve, ssl=serving))
    client = cluster.host("client", idle)
    cluster.advance(0.1)
    text = b"hello" * 10_000 + b"\n"  # more than a record of TLS

    for _ in range(20):  # reads are short by chance
        assert client.run(partial(ask, ssl=asking), text).result(5) == (text, True)


def test_a_certificate_of_another_name_is_refused(cluster, tls):
    serving, asking = tls
    host = cluster.host("server", partial(serve, ssl=serving))
    client = cluster.host("client", idle)
    cluster.advance(0.1)

    with pytest.raises(ssl.SSLCertVerificationError, match="IP address mismatch"):
        client.run(partial(ask, ssl=asking), b"", host.address).result(5)


def test_a_plain_port_is_told_from_tls(cluster, tls):
    async def greet(reader, writer):
        writer.write(b"220 hello\r\n")
        await reader.read()
        writer.close()

    cluster.host("server", partial(serve, greet))
    client = cluster.host("client", idle)
    cluster.advance(0.1)

    with pytest.raises(ssl.SSLError, match="WRONG_VERSION_NUMBER"):
        client.run(partial(ask, ssl=tls[1]), b"a\n").result(5)


def test_a_handshake_in_a_partition_runs_out_of_time(cluster, tls):
    serving, asking = tls
    host = cluster.host("server", partial(serve, ssl=serving))
    client = cluster.host("client", idle)
    cluster.advance(0.1)
    asked = client.run(partial(ask, ssl=asking, ssl_handshake_timeout=9), b"a\n")
    cluster.run_until(lambda: any("connects" in line for line in cluster.trace.lines()), 1)
    cluster.clock.plan(0.001, cluster.partition, host, client)

    with pytest.raises(ConnectionAbortedError, match="handshake is taking longer than 9"):
        asked.result(20)
    assert 9 < cluster.now < 10


def test_a_connection_becomes_tls_on_the_way(cluster, tls):
    serving, asking = tls

    async def serve_both():
        async def talk(reader, writer):
            assert await reader.readline() == b"STARTTLS\n"
            writer.write(b"go on\n")
            await writer.start_tls(serving)
            await echo(reader, writer)

        async with await asyncio.start_server(talk, "0.0.0.0", 7) as server:
            await server.serve_forever()

    async def client():
        reader, writer = await asyncio.open_connection("server", 7)
        writer.write(b"STARTTLS\n")
        before = await reader.readline()
        await writer.start_tls(asking, server_hostname="server")
        writer.write(b"hello\n")
        return before, await reader.readline(), writer.get_extra_info("cipher") is not None

    cluster.host("server", serve_both)
    cluster.advance(0.1)

    assert cluster.host("client", client).result(5) == (b"go on\n", b"hello\n", True)
