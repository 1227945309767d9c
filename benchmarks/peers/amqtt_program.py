"""amqtt as a broker on a port, with anonymous clients and nothing else."""

import asyncio
import sys

from amqtt.broker import Broker

CONFIG = {
    "listeners": {"default": {"type": "tcp", "bind": f"127.0.0.1:{sys.argv[1]}"}},
    "plugins": {"amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True}},
}


async def serve() -> None:
    """Serve until the process is killed."""
    await Broker(CONFIG).start()
    await asyncio.Event().wait()


asyncio.run(serve())
