"""The other side of `outprocess`: runs one module in this process for a gateway.

    python -m callboard.gateway.outprocess_host package.file:Class CONTROL

CONTROL is the `control.id` of the gateway's configuration. The process ends when the gateway
says so. Calls of the module come one after the other, as in the gateway.
"""

import contextlib
import json
import logging
import queue
import sys
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from callboard.gateway.control import (
    DETACH,
    FAILED,
    OK,
    Create,
    Destroy,
    Reply,
    Start,
    decode_control,
    encode_control,
)
from callboard.gateway.errors import MalformedControl, MalformedMessage
from callboard.gateway.loaders import InvalidEntrypoint, find_module
from callboard.gateway.message import Message
from callboard.gateway.module import Module, bind
from callboard.gateway.outprocess import MESSAGES_KEPT, channel_url

if TYPE_CHECKING:
    import pynng

__all__ = ["OutProcessHost", "main"]

log = logging.getLogger("callboard.gateway")

LINGER: Final = 1.0
"""Seconds that a last reply has to leave."""


class OutProcessHost:
    """Runs a module for a gateway in another process."""

    name = "module"
    node = None

    def __init__(self, factory: Callable[[], Module], control: str) -> None:
        """Listen for a gateway.

        Args:
            factory: makes the module.
            control: the address of the control channel, or its `control.id`.
        """
        import pynng

        self._factory = factory
        self._module: Module | None = None
        self._work: queue.Queue[Callable[[], None] | None] = queue.Queue(MESSAGES_KEPT)
        self._control = pynng.Pair0(listen=channel_url(control))
        self._messages: pynng.Pair0 | None = None

    @property
    def ref(self) -> Any:
        """There is no actor here."""
        msg = "a module in a process of its own has no actor there; its gateway has"
        raise LookupError(msg)

    # --- for the module ---

    def publish(self, message: Message) -> None:
        """Send a message to the gateway; waits where its channel is full."""
        assert self._messages is not None
        self._messages.send(message.data)

    def after(self, seconds: float, callback: Callable[[], object]) -> threading.Timer:
        """Call back in the module's own turn."""
        timer = threading.Timer(seconds, self._work.put, [lambda: _ignore(callback())])
        timer.daemon = True
        timer.start()
        return timer

    def every(self, seconds: float, callback: Callable[[], object]) -> "_Ticks":
        """Call back again and again in the module's own turn."""
        ticks = _Ticks(seconds, lambda: self._work.put(lambda: _ignore(callback())))
        ticks.start()
        return ticks

    def fail(self, error: BaseException) -> None:
        """Tell the gateway that the module failed, and end."""
        log.error("the module failed: %s", error)
        self._reply(FAILED)
        self._work.put(None)

    # --- its life ---

    def run(self) -> None:
        """Serve until the gateway says destroy."""
        threading.Thread(target=self._read_control, name="control", daemon=True).start()
        while (work := self._work.get()) is not None:
            try:
                work()
            except Exception:
                log.exception("the module raised")
        if self._module is not None:
            self._module.destroy()
        for channel in (self._messages, self._control):
            if channel is not None:
                channel.close()

    def detach(self) -> None:
        """Tell the gateway that the module leaves, and end."""
        self._reply(DETACH)
        self._work.put(None)

    def _read_control(self) -> None:
        import pynng

        with contextlib.suppress(pynng.Closed):
            while True:
                try:
                    message = decode_control(self._control.recv())
                except MalformedControl as error:
                    log.warning("the gateway sent what is no control message: %s", error)
                    continue
                match message:
                    case Create():
                        self._work.put(lambda order=message: self._create(order))  # type: ignore[misc]
                    case Start():
                        self._work.put(self._start)
                    case Destroy():
                        self._work.put(None)
                    case Reply():
                        log.warning("the gateway sent a reply: %s", message)

    def _create(self, order: Create) -> None:
        import pynng

        try:
            args: Mapping[str, Any] = json.loads(order.args or "{}") or {}
            if self._messages is not None:
                self._messages.close()
            self._messages = pynng.Pair0(
                listen=order.uri,
                send_buffer_size=MESSAGES_KEPT,
                recv_buffer_size=MESSAGES_KEPT,
                recv_max_size=0,
            )
            if self._module is not None:
                self._module.destroy()
            module = self._factory()
            bind(module, self)
            module.create(args)
            self._module = module
        except Exception:
            log.exception("the module was not created")
            self._reply(FAILED)
            return
        self._reply(OK)
        threading.Thread(
            target=self._read_messages, args=(self._messages,), name="messages", daemon=True
        ).start()

    def _start(self) -> None:
        if self._module is not None:
            self._module.start()

    def _read_messages(self, channel: "pynng.Pair0") -> None:
        import pynng

        with contextlib.suppress(pynng.Closed):
            while True:
                data = channel.recv()
                self._work.put(lambda data=data: self._receive(data))  # type: ignore[misc]

    def _receive(self, data: bytes) -> None:
        try:
            message = Message.decode(data)
        except MalformedMessage as error:
            log.warning("the gateway sent what is no message: %s", error)
            return
        assert self._module is not None
        self._module.receive(message)

    def _reply(self, status: int) -> None:
        import pynng

        self._control.send_timeout = int(LINGER * 1000)
        with contextlib.suppress(pynng.NNGException):
            self._control.send(encode_control(Reply(status)))


class _Ticks(threading.Thread):
    """Calls a function every so many seconds."""

    def __init__(self, seconds: float, function: Callable[[], None]) -> None:
        super().__init__(name="ticks", daemon=True)
        self._seconds = seconds
        self._function = function
        self._over = threading.Event()

    def run(self) -> None:
        """Tick until it is cancelled."""
        while not self._over.wait(self._seconds):
            self._function()

    def cancel(self) -> None:
        """Tick no more."""
        self._over.set()


def _ignore(_: object) -> None:
    """Take what a callback returns."""


def main(arguments: list[str]) -> int:
    """Run the command; returns the exit code."""
    if len(arguments) != 2:
        print(__doc__, file=sys.stderr)  # noqa: T201  # it is a command
        return 2
    try:
        factory = find_module(arguments[0])
    except InvalidEntrypoint as error:
        print(f"outprocess_host: {error}", file=sys.stderr)  # noqa: T201
        return 2
    OutProcessHost(factory, arguments[1]).run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
