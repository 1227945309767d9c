"""The measured work with detangle; run by the Python of the peers' environment.

    detangle_program.py echo N fifo|random    N echoes over a stream, one after the other
    detangle_program.py check FILE            the verdict on a history, events as JSON

It prints a rate, for `check` the seconds.
"""

import asyncio
import json
import runpy
import sys
import time
from collections.abc import Awaitable
from pathlib import Path

import detangle

PROGRAM = runpy.run_path(str(Path(__file__).with_name("stream_echo.py")))


async def echo(count: int) -> float:
    """Record so many echoes; returns how many a second."""
    history = detangle.History()
    server = await PROGRAM["listen"]()

    def record(number: int, answer: Awaitable[int]) -> Awaitable[int]:
        return history.call("client", "echo", number, answer)

    rate: float = await PROGRAM["echo"](count, record, time.perf_counter)
    server.close()
    await asyncio.sleep(1.0)
    return rate


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
