"""`$SYS` topics: the router's counts as retained messages, the names as mosquitto has them."""

import asyncio
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from callboard.mqtt.door import Door
from callboard.mqtt.errors import LinkClosed
from callboard.mqtt.link import RouterMailbox
from callboard.mqtt.local_link import LocalLink, Message
from callboard.mqtt.machine import RouterMachine

CLIENT_ID: Final = "$sys"
ROOT: Final = "$SYS/broker"


def sys_values(machine: RouterMachine, door: Door, uptime: float) -> dict[str, str]:
    """Return the topics below `$SYS/broker` and their texts."""
    meters, figures = machine.meters, door.figures
    away = len(machine.graveyard)
    connected = sum(not each.link.is_local for each in machine.connections.values())
    values: dict[str, object] = {
        "uptime": f"{int(uptime)} seconds",
        "clients/connected": connected,
        "clients/disconnected": away,
        "clients/total": connected + away,
        "messages/received": meters.published,
        "messages/sent": meters.delivered,
        "publish/messages/received": meters.published,
        "publish/messages/sent": meters.delivered,
        "publish/messages/dropped": meters.lost + meters.expired + meters.too_large,
        "bytes/received": figures.bytes_in,
        "bytes/sent": figures.bytes_out,
        "retained messages/count": len(machine.retained),
        "subscriptions/count": sum(log.readers for log in machine.routes),
    }
    return {name: str(value) for name, value in values.items()}


class SysTopics:
    """Publishes them every so often; what did not change is not published again."""

    def __init__(
        self,
        mailbox: RouterMailbox,
        machine: RouterMachine,
        door: Door,
        interval: float,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._machine = machine
        self._door = door
        self._interval = interval
        self._loop = loop
        self._began = loop.time()
        self._known: dict[str, str] = {}
        self._link = LocalLink(mailbox, CLIENT_ID)
        self._publish({"version": _version()})
        self._timer = loop.call_soon(self._tick)

    def close(self) -> None:
        """Publish nothing any more; on the router's thread."""
        self._timer.cancel()
        self._link.close()

    def _tick(self) -> None:
        self._timer = self._loop.call_later(self._interval, self._tick)
        uptime = self._loop.time() - self._began
        self._publish(sys_values(self._machine, self._door, uptime))

    def _publish(self, values: dict[str, str]) -> None:
        fresh = [
            Message(f"{ROOT}/{name}", text.encode(), retain=True)
            for name, text in values.items()
            if self._known.get(name) != text
        ]
        self._known |= values
        try:
            self._link.publish_all(fresh)
        except LinkClosed:
            self._timer.cancel()


def _version() -> str:
    try:
        return f"callboard {version('callboard')}"
    except PackageNotFoundError:
        return "callboard"
