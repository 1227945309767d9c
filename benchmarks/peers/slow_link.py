"""A TCP link with a delay: `python slow_link.py PORT SECONDS` prints the port in front of it.

All bytes arrive later by the delay, in both directions; the rate is not limited.
"""

import asyncio
import contextlib
import sys


async def pump(
    source: asyncio.StreamReader, target: asyncio.StreamWriter, delay: float
) -> None:
    """Forward bytes after a delay, in their order."""
    loop = asyncio.get_running_loop()
    with contextlib.suppress(OSError):
        while data := await source.read(1 << 18):
            loop.call_later(delay, target.write, data)
    loop.call_later(delay, target.close)


async def main() -> None:
    """Forward connections until stdin ends."""
    port, delay = int(sys.argv[1]), float(sys.argv[2])

    async def forward(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        inward, outward = await asyncio.open_connection("127.0.0.1", port)
        with contextlib.suppress(asyncio.CancelledError):  # the end of the program
            await asyncio.gather(pump(source, outward, delay), pump(inward, target, delay))

    server = await asyncio.start_server(forward, "127.0.0.1", 0, limit=1 << 20)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main())
