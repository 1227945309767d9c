"""Modules in processes of their own, over the control messages of the Azure IoT gateway.

Two channels of nanomsg's protocol PAIR lead to the process, which listens on both: one for
control messages, one for messages. `create` waits for the reply; `start` follows when all
links are there; `destroy` is sent at the end, and a process that was launched here has a grace
period before it is killed. A reply that says failed or detached later, a channel that breaks, a
process that ends: each ends the module's actor, and its restart policy decides whether all is
done again. Needs pynng (extra `nanomsg`).

The other side in Python is `outprocess_host`; modules in other languages use the library of
the original ("proxy gateway").
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
from callboard.support.seconds import LONGEST

if TYPE_CHECKING:
    import pynng

_log = logging.getLogger("callboard.gateway")

#: Seconds that the process may take to reply to `create`.
CREATE_TIMEOUT: Final = 10.0

#: Seconds that a message may wait for a process which does not take it; then it failed.
SEND_TIMEOUT: Final = 10.0

#: Seconds between looks whether the process is there.
LOOK_INTERVAL: Final = 0.2

#: Messages that the channel keeps on each side.
MESSAGES_KEPT: Final = 128


class _Launch(StrictTable):
    path: str
    args: list[str] = []
    grace_ms: float = Field(
        default=3000, ge=0, le=LONGEST, alias="grace.period.ms", strict=False
    )


class ProcessEntrypoint(StrictTable):
    """How a process is reached, with the keys of the original.

    Attributes:
        activation: `launch` starts the process, `none` finds it running.
        control_id: the control channel: an address, or the name of a socket file.
        message_id: the channel for messages; a fresh one if there is none.
        launch: the program, its arguments, and how long it has to end before it is killed.
    """

    activation: str = Field(default="none", alias="activation.type", pattern="^(none|launch)$")
    control_id: str = Field(alias="control.id", min_length=1)
    message_id: str = Field(default="", alias="message.id")
    launch: _Launch | None = None

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> Self:
        """Check the keys and values.

        Raises:
            InvalidEntrypoint: a key is missing, unknown or has a wrong value.
        """
        try:
            found = cls.model_validate(dict(values))
        except ValidationError as error:
            first = error.errors()[0]
            raise errors.InvalidEntrypoint(
                first["msg"], ".".join(map(str, first["loc"]))
            ) from error
        if (found.activation == "launch") != (found.launch is not None):
            msg = "activation.type 'launch' and the table launch belong together"
            raise errors.InvalidEntrypoint(msg, "launch")
        return found


def channel_url(text: str) -> str:
    """Return the address of a channel: a plain name is that of a socket file in /tmp."""
    return text if "://" in text else f"ipc://{tempfile.gettempdir()}/{text}"


def message_channel(**options: Any) -> "pynng.Pair0":
    """Open one side of the channel for messages."""
    import pynng

    kept = {"send_buffer_size": MESSAGES_KEPT, "recv_buffer_size": MESSAGES_KEPT}
    return pynng.Pair0(recv_max_size=0, **kept, **options)


class OutProcess(Module):
    """Stands in the gateway for a module in another process."""

    detached: ClassVar[bool] = True  # channels block

    def __init__(self, entrypoint: ProcessEntrypoint, folder: Path) -> None:
        """Remember how the process is reached, and where the path of its program begins."""
        self._launch = entrypoint.launch
        self._folder = folder
        self._control_url = channel_url(entrypoint.control_id)
        self._message_id = entrypoint.message_id
        self._process: subprocess.Popen[bytes] | None = None
        #: The channels that are open: that for control messages, that for messages.
        self._channels: list[pynng.Pair0] = []
        self._is_leaving = threading.Event()

    def create(self, args: Mapping[str, Any]) -> None:
        """Launch the process, if it is to be, and let it create the module."""
        try:
            import pynng
        except ImportError as error:
            msg = "the loader outprocess needs pynng; pip install 'callboard[nanomsg]'"
            raise errors.ModuleFailed(msg) from error
        messages = channel_url(self._message_id or f"callboard-{uuid.uuid4().hex}")
        try:
            if self._launch is not None:
                beside = self._folder / self._launch.path
                path = str(beside) if beside.is_file() else self._launch.path
                self._process = subprocess.Popen([path, *self._launch.args])  # noqa: S603  # as configured
            limit = _ms(CREATE_TIMEOUT)
            channel = self._control = pynng.Pair0(
                dial=self._control_url,
                block_on_dial=False,
                send_timeout=limit,
                recv_timeout=limit,
            )
            self._channels.append(channel)
            after_fork.register(self, OutProcess._leave)
            channel.send(
                control.encode_control(control.ControlCreate(messages, json.dumps(dict(args))))
            )
            reply = control.decode_control(channel.recv())
            if not isinstance(reply, control.ControlReply) or reply.status != control.OK:
                msg = f"the process at {self._control_url} did not create it: {reply}"
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
        """Start the module there, and publish what it publishes."""
        self._control.send(control.encode_control(control.ControlStart()))
        for work in (self._read_control, self._read_messages):
            name = f"callboard-outprocess-{self.name}"
            threading.Thread(target=self._watched, args=(work,), name=name, daemon=True).start()

    def receive(self, message: Message) -> None:
        """Hand the message to the process; waits where its channel is full."""
        self._messages.send(message.data)

    def _leave(self) -> None:
        """Drop the channels in a forked process; to close them would wait for their threads."""
        for channel in self._channels:
            after_fork.keep_for_ever(channel)
            for dialer in channel.dialers:
                after_fork.drop_endpoint(dialer.url, is_bound=False)

    def destroy(self) -> None:
        """Tell the module to end, and see that a launched process does."""
        self._is_leaving.set()
        with contextlib.suppress(Exception):  # best effort: the process may be gone
            if self._channels and self._control.pipes:
                self._control.send_timeout = _ms(LOOK_INTERVAL)
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
        """Run on a thread of this module; what goes wrong there ends its actor."""
        try:
            work()
        except Exception as error:  # noqa: BLE001  # the thread cannot raise it elsewhere
            if not self._is_leaving.is_set():
                self.fail(errors.ModuleFailed(f"the process of module {self.name!r}: {error}"))

    def _read_control(self) -> None:
        """Take replies that come later, and see that the process is there."""
        import pynng

        self._control.recv_timeout = _ms(LOOK_INTERVAL)
        while not self._is_leaving.is_set():
            if self._process is not None and self._process.poll() is not None:
                msg = f"it ended with code {self._process.returncode}"
                raise errors.ModuleFailed(msg)
            if not self._control.pipes:
                msg = "its control channel broke"
                raise errors.ModuleFailed(msg)
            try:
                message = control.decode_control(self._control.recv())
            except pynng.Timeout:
                continue
            except errors.MalformedControl as error:
                _log.warning("module %r sent what is no control message: %s", self.name, error)
                continue
            if isinstance(message, control.ControlReply) and message.status != control.OK:
                msg = f"it says status {message.status}"
                raise errors.ModuleFailed(msg)

    def _read_messages(self) -> None:
        """Publish what the process sends."""
        while not self._is_leaving.is_set():
            data = self._messages.recv()
            try:
                self.publish(Message.decode(data))
            except errors.MalformedMessage as error:
                _log.warning("module %r sent what is no message: %s", self.name, error)


def _ms(seconds: float) -> int:
    """Return seconds as whole milliseconds."""
    return int(seconds * 1000)
