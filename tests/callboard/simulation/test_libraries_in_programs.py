"""Libraries of others run unchanged in programs of a simulated cluster."""

import asyncio

import pytest

websockets = pytest.importorskip("websockets", reason="needs websockets")
aiohttp = pytest.importorskip("aiohttp", reason="needs aiohttp")
pytest.importorskip("aiohttp.web", reason="needs aiohttp")
uvicorn = pytest.importorskip("uvicorn", reason="needs uvicorn")


async def echo_web_socket():
    async def echo(connection):
        async for message in connection:
            await connection.send(message)

    async with websockets.serve(echo, "0.0.0.0", 8765) as server:
        await server.serve_forever()


async def ask_web_socket():
    async with websockets.connect("ws://server:8765") as connection:
        await connection.send("hello")
        return await connection.recv()


async def aiohttp_server():
    async def hello(request):
        return aiohttp.web.json_response({"name": request.match_info["name"]})

    app = aiohttp.web.Application()
    app.router.add_get("/{name}", hello)
    runner = aiohttp.web.AppRunner(app)
    await runner.setup()
    await aiohttp.web.TCPSite(runner, "0.0.0.0", 80).start()
    await asyncio.Event().wait()


async def uvicorn_server():
    async def app(scope, receive, send):
        assert scope["type"] == "http"
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b'{"name": "ann"}'})

    config = uvicorn.Config(app, "0.0.0.0", 80, lifespan="off", log_config=None)
    await uvicorn.Server(config).serve()


async def get_by_aiohttp():
    async with (
        aiohttp.ClientSession() as session,
        session.get("http://server/ann") as answer,
    ):
        return await answer.json()


def test_websockets_at_both_ends(cluster):
    cluster.host("server", echo_web_socket)
    cluster.advance(1)

    assert cluster.host("client", ask_web_socket).result(10) == "hello"


@pytest.mark.parametrize("server", [aiohttp_server, uvicorn_server])
def test_aiohttp_asks_servers_of_http(cluster, server):
    cluster.host("server", server)
    cluster.advance(1)

    assert cluster.host("client", get_by_aiohttp).result(10) == {"name": "ann"}


def test_uvicorn_ends_by_a_signal(cluster):
    host = cluster.host("server", uvicorn_server)
    cluster.advance(1)
    host.signal()
    cluster.advance(5)

    assert host.done
