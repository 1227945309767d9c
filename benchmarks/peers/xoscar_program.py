"""The measured work with xoscar; run by the Python of the peers' environment.

    xoscar_program.py serve               an echo in a pool; prints its address, ends with stdin
    xoscar_program.py local_ask N         ask another actor of the process, through messages
    xoscar_program.py local_call N        the same by a local reference: the method is called
    xoscar_program.py remote_ask N A      ask the echo at address A
    xoscar_program.py flood N A           N one-way messages to A, awaiting each send
    xoscar_program.py flood_gathered N A  the same in gathers of 256
    xoscar_program.py spawn N             create N actors and keep their references
    xoscar_program.py memory N            the same; prints bytes for each as its rate

Each prints its rate, after a tenth of the work as warm-up. Pools have one process
(`n_process=0`), where the actors run.

xoscar has two kinds of reference to an actor of the same process. What `create_actor` returns
goes through messages, as a reference to another process would. What `actor_ref` looks up inside
the process is a local one, and calling it calls the method, under the actor's lock and with no
message.
"""

import asyncio
import gc
import os
import socket
import sys
import time
from pathlib import Path

import xoscar as xo

GATHER = 256
"""Sends in flight at once in `flood_gathered`."""


class Echo(xo.Actor):
    """Answers asks, and counts tells."""

    def __init__(self) -> None:
        self.seen = 0

    async def echo(self, number: int) -> int:
        """Answer with the same number."""
        return number

    async def count(self, number: int) -> None:
        """Count one message."""
        self.seen += 1

    async def take_count(self) -> int:
        """Answer how many were counted, and start again at zero."""
        seen, self.seen = self.seen, 0
        return seen


class Driver(xo.Actor):
    """The actor that asks and sends; every measure runs inside one of its methods."""

    def __init__(self, address: str) -> None:
        self.partner = address

    async def look_up(self) -> None:
        """Find the echo by its name: a local reference, if it is in this process."""
        self.echo = await xo.actor_ref(self.partner, "echo")

    async def take(self, echo: xo.ActorRefType[Echo]) -> None:
        """Use the reference that `create_actor` returned."""
        self.echo = echo

    async def ask(self, count: int) -> None:
        """Ask one after the other."""
        for number in range(count):
            await self.echo.echo(number)

    async def flood(self, count: int) -> None:
        """Send one-way messages, awaiting each send, until the echo has counted all of them."""
        for number in range(count):
            await self.echo.count.tell(number)
        await self.until_counted(count)

    async def flood_gathered(self, count: int) -> None:
        """Send one-way messages in gathers, until the echo has counted all of them."""
        for start in range(0, count, GATHER):
            numbers = range(start, min(start + GATHER, count))
            await asyncio.gather(*(self.echo.count.tell(number) for number in numbers))
        await self.until_counted(count)

    async def until_counted(self, count: int) -> None:
        """Ask for the count until all are there: an answer may overtake one-way messages."""
        while count > 0:
            count -= await self.echo.take_count()


class Idle(xo.Actor):
    """Two attributes, and nothing to do."""

    def __init__(self) -> None:
        self.name = "idle"
        self.seen = 0


def free_address() -> str:
    """Find a free port on this machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


async def serve() -> None:
    """Keep an echo until stdin closes."""
    pool = await xo.create_actor_pool(free_address(), n_process=0)
    async with pool:
        await xo.create_actor(Echo, address=pool.external_address, uid="echo")
        print(pool.external_address, flush=True)
        await asyncio.to_thread(sys.stdin.read)


async def measure(mode: str, count: int, address: str) -> None:
    """Run one measure and print its rate."""
    pool = await xo.create_actor_pool(free_address(), n_process=0)
    async with pool:
        here = pool.external_address
        driver = await xo.create_actor(Driver, address or here, address=here)
        if address:
            await driver.look_up()
        else:
            echo = await xo.create_actor(Echo, address=here, uid="echo")
            await (driver.take(echo) if mode == "local_ask" else driver.look_up())
        run = getattr(driver, mode) if mode.startswith("flood") else driver.ask
        await run(max(1, count // 10))
        started = time.perf_counter()
        await run(count)
        print("rate", count / (time.perf_counter() - started), flush=True)


async def create(mode: str, count: int) -> None:
    """Create actors, and print how many a second, or the bytes for each."""
    pool = await xo.create_actor_pool(free_address(), n_process=0)
    async with pool:
        here = pool.external_address
        kept = [await xo.create_actor(Idle, address=here) for _ in range(max(1, count // 10))]
        gc.collect()
        before, started = resident(), time.perf_counter()
        kept += [await xo.create_actor(Idle, address=here) for _ in range(count)]
        took = time.perf_counter() - started
        gc.collect()
        figure = count / took if mode == "spawn" else (resident() - before) / count
        print("rate", figure, flush=True)
        os._exit(0)  # the measurement is taken; destroying them one by one takes long


def resident() -> int:
    """Return the bytes of memory that this process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        asyncio.run(serve())
    elif sys.argv[1] in {"spawn", "memory"}:
        asyncio.run(create(sys.argv[1], int(sys.argv[2])))
    else:
        asyncio.run(measure(sys.argv[1], int(sys.argv[2]), sys.argv[3] if sys.argv[3:] else ""))
