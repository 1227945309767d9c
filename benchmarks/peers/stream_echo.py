"""Echoes of lines over a stream, in plain asyncio: one program for every simulator.

What simulates it gives the hosts, and what records each round trip in a history of its own.
"""

import asyncio
from collections.abc import Awaitable, Callable

Record = Callable[[int, Awaitable[int]], Awaitable[int]]
"""Waits for the answer to a number, and records the round trip."""

SERVER = ("server", 5432)


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send each line back."""
    while line := await reader.readline():
        writer.write(line)
        await writer.drain()
    writer.close()


async def listen() -> asyncio.Server:
    """Begin to serve."""
    return await asyncio.start_server(serve, *SERVER)


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> int:
    """Send a number and wait for it."""
    writer.write(b"%d\n" % number)
    await writer.drain()
    return int(await reader.readline())


async def echo(count: int, record: Record, now: Callable[[], float]) -> float:
    """Record so many echoes, one after the other; returns how many a second.

    Args:
        count: how many.
        record: one.
        now: the real time, which a simulation may hide.
    """
    reader, writer = await asyncio.open_connection(*SERVER)
    started = now()
    for number in range(count):
        await record(number, ask(reader, writer, number))
    took = now() - started
    writer.close()
    await writer.wait_closed()
    return count / took
