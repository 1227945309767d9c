"""The other side of `outprocess`: runs one module in this process for a gateway.

    python -m callboard.gateway.outprocess_host package.file:Class CONTROL

CONTROL is the `control.id` of the gateway's configuration. The process ends when the gateway
orders it. The module is an actor here, too: it is called one call at a time, and its bounded
mailbox makes the channels wait.
"""

import contextlib
import logging
import sys
import threading
from collections.abc import Callable
from typing import Any, Final

import pynng

from callboard.gateway.configuration import find_module
from callboard.gateway.errors import InvalidEntrypoint, MalformedControl, MalformedMessage
from callboard.gateway.module import EndBy, Module, ModuleActor
from callboard.gateway.outprocess import MESSAGES_KEPT, channel_url, message_channel
from callboard.gateway.wire import control
from callboard.gateway.wire.message import Message
from callboard.kernel.actors import ExitReason, handler
from callboard.kernel.queue import Mailbox
from callboard.node import Node
from callboard.support.nesting import parse_json

_log = logging.getLogger("callboard.gateway")

#: Milliseconds for a last reply to be sent.
LINGER_MS: Final = 1000


class ProcessHost(ModuleActor):
    """Runs a module for a gateway in another process."""

    mailbox = Mailbox(limit=MESSAGES_KEPT)

    def __init__(self, factory: Callable[[], Module], control_id: str) -> None:
        """Listen for a gateway.

        Args:
            factory: makes the module.
            control_id: the control channel: an address, or the name of a socket file.
        """
        self._factory = factory
        self._is_made = False
        self._messages: pynng.Pair0 | None = None
        self._control = pynng.Pair0(listen=channel_url(control_id))
        threading.Thread(target=self._read_control, name="control", daemon=True).start()

    @handler
    def create(self, order: control.ControlCreate) -> None:
        """Make the module, and reply with the result."""
        try:
            args: dict[str, Any] = parse_json(order.args or "{}") or {}
            self._end_module()
            self._messages = channel = message_channel(listen=order.uri)
            self.make("module", self._factory, args, lambda message: channel.send(message.data))
            self._is_made = True
        except BaseException as error:  # noqa: BLE001  # a module may raise anything
            self.log_error(error, "create()")
            self._reply(control.FAILED)
            return
        self._reply(control.OK)
        threading.Thread(
            target=self._read_messages, args=(channel,), name="messages", daemon=True
        ).start()

    @handler
    def start(self, _: control.ControlStart) -> None:
        """Start the module."""
        if self._is_made:
            with self.log_errors("start()"):
                self.module.start()

    @handler
    def receive(self, data: bytes) -> None:
        """Pass a message from the gateway to the module."""
        try:
            message = Message.decode(data)
        except MalformedMessage as error:
            _log.warning("the gateway sent a malformed message: %s", error)
            return
        if self._is_made:
            with self.log_errors("receive()"):
                self.module.receive(message)

    @handler
    def destroy(self, _: control.ControlDestroy) -> None:
        """End, because the gateway orders it."""
        self.stop_self()

    @handler
    def refuse_reply(self, reply: control.ControlReply) -> None:
        """Log an unexpected reply: only modules send replies."""
        _log.warning("the gateway sent a reply: %s", reply)

    @handler
    def end_by(self, order: EndBy) -> None:
        """Report to the gateway that the module failed, and end."""
        _log.error("the module failed: %s", order.error)
        self._reply(control.FAILED)
        self.stop_self()

    def on_end(self, reason: ExitReason, detail: str) -> None:
        """Destroy the module and close the channels."""
        self._end_module()
        self._control.close()

    def _end_module(self) -> None:
        """Close the channel for messages and destroy the module."""
        if self._messages is not None:
            self._messages.close()
        if self._is_made:
            self._is_made = False
            self.module.destroy()

    def _reply(self, status: int) -> None:
        """Reply to the gateway, if it is connected."""
        self._control.send_timeout = LINGER_MS
        with contextlib.suppress(pynng.NNGException):
            self._control.send(control.encode_control(control.ControlReply(status)))

    def _read_control(self) -> None:
        """Pass orders of the gateway to this actor."""
        with contextlib.suppress(pynng.Closed):
            while True:
                try:
                    self.me.tell(control.decode_control(self._control.recv()))
                except MalformedControl as error:
                    _log.warning("the gateway sent a malformed control message: %s", error)

    def _read_messages(self, channel: pynng.Pair0) -> None:
        """Pass messages to this actor; wait while its mailbox is full."""
        with contextlib.suppress(pynng.Closed):
            while True:
                self.me.tell(channel.recv())


def main(arguments: list[str]) -> int:
    """Run the command; return the exit code."""
    if len(arguments) != 2:
        print(__doc__, file=sys.stderr)  # noqa: T201  # it is a command
        return 2
    try:
        factory = find_module(arguments[0])
    except InvalidEntrypoint as error:
        print(f"outprocess_host: {error}", file=sys.stderr)  # noqa: T201
        return 2
    with Node("outprocess") as node:
        node.monitor(node.spawn(ProcessHost, factory, arguments[1])).result()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
