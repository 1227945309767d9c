"""detangle doing what callboard is measured at; run by the Python of the peers' environment.

    detangle_program.py echo N fifo|random    N echoes over a stream, one after the other
    detangle_program.py check FILE            the verdict on a history, events as JSON

It prints a rate, for `check` the seconds.
"""

import asyncio
import json
import sys
import time
from pathlib import Path

import detangle


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send each line back."""
    while line := await reader.readline():
        writer.write(line)
        await writer.drain()
    writer.close()


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> int:
    """Send a number and wait for it."""
    writer.write(b"%d\n" % number)
    await writer.drain()
    return int(await reader.readline())


async def echo(count: int) -> float:
    """Record so many echoes; returns how many a second."""
    server = await asyncio.start_server(serve, "server", 5432)
    reader, writer = await asyncio.open_connection("server", 5432)
    history = detangle.History()
    started = time.perf_counter()
    for number in range(count):
        await history.call("client", "echo", number, ask(reader, writer, number))
    took = time.perf_counter() - started
    writer.close()
    await writer.wait_closed()
    server.close()
    await asyncio.sleep(1.0)
    return count / took


def check(path: str) -> float:
    """Judge a history; returns the seconds that it took."""
    history = detangle.History()
    begun = {}
    for number, client, key, name, value, outcome, answer in json.loads(Path(path).read_text()):
        if outcome == "begin":
            argument = key if name == "read" else (key, value)
            begun[number] = history.invoke(client, name, argument)
        elif outcome == "answered":
            history.ok(begun[number], answer)
        else:
            history.info(begun[number])
    started = time.perf_counter()
    history.assert_linearizable(detangle.lin.KV())
    return time.perf_counter() - started


def main(what: str, argument: str, schedule: str = "fifo") -> None:
    """Measure and print."""
    if what == "check":
        rate = check(argument)
    else:
        seed = 7 if schedule == "random" else None
        rate = detangle.run(lambda: echo(int(argument)), seed=seed, max_steps=10**9)
    print("rate", rate, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
