"""The work of the measures of entities with casty; run by a separate Python.

    casty_program.py host STORE PLACE [SEED]…  host until stdin closes; print the address
    casty_program.py ask COUNT SEED…           ask from a client, and print a rate

STORE is `memory` or the URL of a database. A client asks for counts, which changes nothing,
with 100 asks outstanding. Hosts take orders from stdin, a line each, and print a number when
one is done: `wake WHAT`, `total WHAT` and `ask WHAT SENDERS COUNT`, by so many senders with 100
asks outstanding each. WHAT is `note` (changes the state) or `note-durable` (also in the store).
"""

import asyncio
import sys
import time
from collections import deque
from dataclasses import dataclass

from casty import ActorSystem, Askable, Client, Cluster, Context, Ref, System, actor
from casty.stores import SQL

ENTITIES = 1_000
WINDOW = 100
TEXT = "x" * 68


@dataclass(frozen=True)
class Note(Askable[int]):
    """A command that changes the state."""

    text: str


@dataclass(frozen=True)
class Count(Askable[int]):
    """A question that changes nothing."""


async def body(ctx: Context[int, Note | Count]) -> None:
    """Count what was noted."""
    async for msg in ctx.inbox:
        if isinstance(msg, Note):
            await ctx.state.set(ctx.state.value + 1)
        msg.reply_to.tell(ctx.state.value)


@actor(initial=0)
async def tally(ctx: Context[int, Note | Count]) -> None:
    """Count in the memory of a majority of the replicas."""
    await body(ctx)


@actor(initial=0, durable="write")
async def durable_tally(ctx: Context[int, Note | Count]) -> None:
    """Count in the store as well."""
    await body(ctx)


async def host(store: str, place: str, *seeds: str) -> None:
    """Host until stdin closes."""
    if store != "memory":
        async with SQL(store) as opened:
            await serve(opened, int(place), seeds)
    else:
        await serve(None, int(place), seeds)


async def serve(store: SQL | None, place: int, seeds: tuple[str, ...]) -> None:
    """Host with a store, or without."""
    cluster = Cluster(bind="127.0.0.1:0", seeds=seeds)
    async with ActorSystem(cluster=cluster, store=store) as system:
        while len(system.members) <= len(seeds):  # noqa: ASYNC110 - it has no event for this
            await asyncio.sleep(0.01)
        print(system.node.address, flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            print(await obey(system, place, *line.split()), flush=True)


async def obey(
    system: System, place: int, order: str, what: str, senders: str = "0", count: str = "0"
) -> int:
    """Do what a line says, and return a number."""
    kind = durable_tally if what == "note-durable" else tally
    refs = [system.ref(kind, f"k-{number}") for number in range(ENTITIES)]
    if order == "wake":
        await wake(refs)
    if order in {"wake", "total"}:
        return await total(refs)
    first = place * int(senders)
    parts = [refs[125 * n :] + refs[: 125 * n] for n in range(first, first + int(senders))]
    await asyncio.gather(*(keep_asking(part, Note(TEXT), int(count)) for part in parts))
    return int(count)


async def ask(count: str, *seeds: str) -> None:
    """Wake all, ask so often, and print the rate."""
    async with Client(seeds=seeds) as client:
        refs = [client.ref(tally, f"k-{number}") for number in range(ENTITIES)]
        await wake(refs)
        started = time.perf_counter()
        await keep_asking(refs, Count(), int(count))
        print("rate", int(count) / (time.perf_counter() - started), flush=True)


async def wake(refs: list[Ref]) -> None:
    """Change each once."""
    for start in range(0, ENTITIES, WINDOW):
        await asyncio.gather(*(ref.ask(Note(TEXT)) for ref in refs[start : start + WINDOW]))


async def keep_asking(refs: list[Ref], question: Note | Count, times: int) -> None:
    """Ask in turn and keep a window of asks outstanding."""
    window: deque[asyncio.Task] = deque()
    for number in range(times):
        if len(window) == WINDOW:
            await window.popleft()
        window.append(asyncio.create_task(refs[number % len(refs)].ask(question)))
    for task in window:
        await task


async def total(refs: list[Ref]) -> int:
    """Return how often all were changed."""
    counts = 0
    for start in range(0, ENTITIES, WINDOW):
        asks = (ref.ask(Count()) for ref in refs[start : start + WINDOW])
        counts += sum(await asyncio.gather(*asks))
    return counts


def main(what: str, *arguments: str) -> None:
    """Host or ask."""
    asyncio.run({"host": host, "ask": ask}[what](*arguments))


if __name__ == "__main__":
    main(*sys.argv[1:])
