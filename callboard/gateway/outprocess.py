"""Modules in separate processes, over the control messages of the Azure IoT gateway.

Two channels of nanomsg's protocol PAIR lead to the process, which listens on both: one for
control messages, one for messages. `create` waits for the reply; `start` follows when all links
exist; `destroy` is sent at the end, and a process that was launched here has a grace period
before it is killed. A later reply *failed* or *detached*, a broken channel, or the end of the
process ends the module's actor, and its restart policy decides whether everything starts again.
Needs pynng (extra `nanomsg`).

The other side in Python is `outprocess_host`; modules in other languages use the library of the
Azure IoT gateway ("proxy gateway").
"""

import contextlib
import json
import logging
import subprocess
import tempfile
import threading
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

from pydantic import Field, ValidationError

from callboard.configuration.reading import StrictTable
from callboard.gateway import errors
from callboard.gateway.module import Module
from callboard.gateway.wire import control
from callboard.gateway.wire.message import Message
from callboard.support import after_fork
from callboard.support.seconds import MAX_SECONDS

if TYPE_CHECKING:
    import pynng

_log = logging.getLogger("callboard.gateway")

#: Seconds for the process to reply to `create`.
CREATE_TIMEOUT: Final = 10.0

#: Seconds that a message waits for a process that does not read; then it has failed.
SEND_TIMEOUT: Final = 10.0

#: Seconds between checks whether the process is running.
POLL_SECONDS: Final = 0.2

#: Messages that the channel buffers on each side.
MESSAGES_KEPT: Final = 128


class _Launch(StrictTable):
    path: str
    args: list[str] = []
    grace_ms: float = Field(
        default=3000, ge=0, le=MAX_SECONDS, alias="grace.period.ms", strict=False
    )


class ProcessEntrypoint(StrictTable):
    """The address of a process, with the keys of the Azure IoT gateway.

    Attributes:
        activation: `launch` starts the process; `none` expects it to be running.
        control_id: the control channel: an address, or the name of a socket file.
        message_id: the channel for messages; without one, a new name is generated.
        launch: the program, its arguments, and its grace period before it is killed.
    """

    activation: str = Field(default="none", alias="activation.type", pattern="^(none|launch)$")
    control_id: str = Field(alias="control.id", min_length=1)
    message_id: str = Field(default="", alias="message.id")
    launch: _Launch | None = None

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> Self:
        """Check the keys and values.

        Raises:
            InvalidEntrypoint: a key is missing or unknown, or has a wrong value.
        """
        try:
            entrypoint = cls.model_validate(dict(values))
        except ValidationError as error:
            first = error.errors()[0]
            raise errors.InvalidEntrypoint(
                first["msg"], ".".join(map(str, first["loc"]))
            ) from error
        if (entrypoint.activation == "launch") != (entrypoint.launch is not None):
            msg = "activation.type 'launch' and the table launch require each other"
            raise errors.InvalidEntrypoint(msg, "launch")
        return entrypoint


def channel_url(text: str) -> str:
    """Return the address of a channel; a plain name is a socket file in /tmp."""
    return text if "://" in text else f"ipc://{tempfile.gettempdir()}/{text}"


def message_channel(**options: Any) -> "pynng.Pair0":
    """Open one side of the channel for messages."""
    import pynng

    buffers = {"send_buffer_size": MESSAGES_KEPT, "recv_buffer_size": MESSAGES_KEPT}
    return pynng.Pair0(recv_max_size=0, **buffers, **options)


class OutProcess(Module):
    """The representative, in the gateway, of a module in another process."""

    detached: ClassVar[bool] = True  # channels block

    def __init__(self, entrypoint: ProcessEntrypoint, folder: Path) -> None:
        """Store the entrypoint, and the start of relative paths to its program."""
        self._launch = entrypoint.launch
        self._folder = folder
        self._control_url = channel_url(entrypoint.control_id)
        self._message_id = entrypoint.message_id
        self._process: subprocess.Popen[bytes] | None = None
        #: The open channels: for control messages, and for messages.
        self._channels: list[pynng.Pair0] = []
        self._is_leaving = threading.Event()

    def create(self, args: Mapping[str, Any]) -> None:
        """Launch the process if configured, and let it create the module."""
        try:
            import pynng
        except ImportError as error:
            msg = "the loader outprocess needs pynng; pip install 'callboard[nanomsg]'"
            raise errors.ModuleFailed(msg) from error
        messages = channel_url(self._message_id or f"callboard-{uuid.uuid4().hex}")
        try:
            if self._launch is not None:
                program = self._folder / self._launch.path
                path = str(program) if program.is_file() else self._launch.path
                self._process = subprocess.Popen([path, *self._launch.args])  # noqa: S603  # as configured
            limit = _ms(CREATE_TIMEOUT)
            channel = self._control = pynng.Pair0(
                dial=self._control_url,
                block_on_dial=False,
                send_timeout=limit,
                recv_timeout=limit,
            )
            self._channels.append(channel)
            after_fork.register(self, OutProcess._drop_copy)
            channel.send(
                control.encode_control(control.ControlCreate(messages, json.dumps(dict(args))))
            )
            reply = control.decode_control(channel.recv())
            if not isinstance(reply, control.ControlReply) or reply.status != control.OK:
                msg = f"the process at {self._control_url} did not create the module: {reply}"
                raise errors.ModuleFailed(msg)
            self._messages = message_channel(
                dial=messages, block_on_dial=False, send_timeout=_ms(SEND_TIMEOUT)
            )
            self._channels.append(self._messages)
        except Exception as error:
            self.destroy()
            if not isinstance(error, pynng.NNGException):
                raise
            msg = f"the process at {self._control_url} did not answer: {error}"
            raise errors.ModuleFailed(msg) from error

    def start(self) -> None:
        """Start the module in the process, and publish its messages."""
        self._control.send(control.encode_control(control.ControlStart()))
        for work in (self._read_control, self._read_messages):
            name = f"callboard-outprocess-{self.name}"
            threading.Thread(target=self._watched, args=(work,), name=name, daemon=True).start()

    def receive(self, message: Message) -> None:
        """Send the message to the process; wait while its channel is full."""
        self._messages.send(message.data)

    def _drop_copy(self) -> None:
        """Abandon the channels in a forked process.

        Closing them would wait for threads that exist only in the parent.
        """
        for channel in self._channels:
            after_fork.keep_for_ever(channel)
            for dialer in channel.dialers:
                after_fork.drop_endpoint(dialer.url, is_bound=False)

    def destroy(self) -> None:
        """Ask the module to end, and make sure that a launched process does."""
        self._is_leaving.set()
        with contextlib.suppress(Exception):  # best effort: the process may have ended
            if self._channels and self._control.pipes:
                self._control.send_timeout = _ms(POLL_SECONDS)
                self._control.send(control.encode_control(control.ControlDestroy()))
        process = self._process
        if process is not None and self._launch is not None:
            try:
                process.wait(self._launch.grace_ms / 1000)
            except subprocess.TimeoutExpired:
                _log.warning("the process of %r is killed", self._control_url)
                process.kill()
                process.wait()
        for channel in self._channels:
            channel.close()

    def _watched(self, work: Any) -> None:
        """Run a function on a thread of this module; an error ends its actor."""
        try:
            work()
        except Exception as error:  # noqa: BLE001  # the thread cannot raise it anywhere else
            if not self._is_leaving.is_set():
                self.fail(errors.ModuleFailed(f"module {self.name!r}: {error}"))

    def _read_control(self) -> None:
        """Handle later replies, and check that the process is running."""
        import pynng

        self._control.recv_timeout = _ms(POLL_SECONDS)
        while not self._is_leaving.is_set():
            if self._process is not None and self._process.poll() is not None:
                msg = f"the process ended with code {self._process.returncode}"
                raise errors.ModuleFailed(msg)
            if not self._control.pipes:
                msg = "the control channel to the process broke"
                raise errors.ModuleFailed(msg)
            try:
                message = control.decode_control(self._control.recv())
            except pynng.Timeout:
                continue
            except errors.MalformedControl as error:
                _log.warning("module %r sent a malformed control message: %s", self.name, error)
                continue
            if isinstance(message, control.ControlReply) and message.status != control.OK:
                msg = (
                    "the process of the module refused the request with status "
                    f"{message.status}"
                )
                raise errors.ModuleFailed(msg)

    def _read_messages(self) -> None:
        """Publish messages of the process."""
        while not self._is_leaving.is_set():
            data = self._messages.recv()
            try:
                self.publish(Message.decode(data))
            except errors.MalformedMessage as error:
                _log.warning("module %r sent a malformed message: %s", self.name, error)


def _ms(seconds: float) -> int:
    """Return seconds as whole milliseconds."""
    return int(seconds * 1000)
