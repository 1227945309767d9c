"""The module `file`: writes messages to a file, or publishes the lines of one."""

import logging
import os
import threading
from collections.abc import Mapping
from io import BufferedReader, FileIO
from typing import Any, Final, Literal

from callboard.commitlog.disk import open_plain
from callboard.commitlog.folder import write_all
from callboard.gateway.errors import MalformedMessage, ModuleFailed
from callboard.gateway.module import Module, ModuleArguments
from callboard.gateway.wire.message import Message, message_of, read_line, to_line
from callboard.support import after_fork
from callboard.support.files.file_place import FilePlaces, replaced

_log = logging.getLogger("callboard.gateway")

#: Seconds between checks of a followed file.
POLL_SECONDS: Final = 0.2


class FileArguments(ModuleArguments):
    """Arguments of a file module.

    Attributes:
        path: the path of the file.
        mode: `write` appends received messages; `read` publishes the existing lines;
            `follow` also publishes later lines.
        format: `jsonl` has content and properties, `text` only the content of each line.
    """

    path: str
    mode: Literal["write", "read", "follow"] = "write"
    format: Literal["jsonl", "text"] = "jsonl"


class FileModule(Module):
    """A file as a sink or a source."""

    Arguments = FileArguments

    def create(self, args: Mapping[str, Any]) -> None:
        """Open the file."""
        self._args = FileArguments.read(args)
        self._over = threading.Event()
        self._reader: threading.Thread | None = None
        self._file: BufferedReader | FileIO
        after_fork.register(self, FileModule._drop_copy)
        if self._args.mode != "write":
            self._file = open(self._args.path, "rb", opener=open_plain)  # noqa: SIM115
            return
        # Unbuffered: bytes that the disk refused must not be written later.
        self._file = open(self._args.path, "a+b", buffering=0, opener=open_plain)  # noqa: SIM115
        self._places = FilePlaces()
        self._places.add(self._args.path)
        size = self._file.seek(0, os.SEEK_END)
        self._file.seek(max(0, size - 1))
        if self._file.read(1) not in (b"", b"\n"):  # the last line is incomplete
            write_all(self._file, b"\n")

    def start(self) -> None:
        """Start reading, on a thread, because full sinks block it."""
        if self._args.mode != "write":
            self._reader = threading.Thread(
                target=self._read, name=f"callboard-file-{self.name}", daemon=True
            )
            self._reader.start()

    def receive(self, message: Message) -> None:
        """Append a line; the system has it when this returns.

        Raises:
            OSError: the disk reports an error; the partial line is removed.
            ModuleFailed: the file was removed or replaced.
        """
        if self._args.mode != "write":
            msg = f"{self._args.path} is read, not written (mode={self._args.mode!r})"
            raise ValueError(msg)
        if lost := self._places.misplaced():
            raise ModuleFailed(replaced(lost, "put it back, and restart the module"))
        line = message.content if self._args.format == "text" else to_line(message).encode()
        end = self._file.seek(0, os.SEEK_END)
        try:
            write_all(self._file, line + b"\n")
        except OSError:
            self._file.truncate(end)
            raise

    def _drop_copy(self) -> None:
        """Close the file in a forked process, where no gateway runs."""
        after_fork.drop(getattr(self, "_file", None))

    def destroy(self) -> None:
        """Close the file."""
        self._over.set()
        if self._reader is not None:
            self._reader.join(1.0)  # it may wait for room in a sink
        self._file.close()

    def _read(self) -> None:
        """Publish the lines of the file until its end, or the end of the module."""
        rest = b""
        try:
            while not self._over.is_set():
                line = self._file.readline()
                rest += line
                if rest.endswith(b"\n") or (rest and self._args.mode == "read"):
                    self._publish_line(rest.rstrip(b"\r\n"))
                    rest = b""
                elif not line:
                    if self._args.mode == "read":
                        return
                    self._over.wait(POLL_SECONDS)
        except Exception as error:  # noqa: BLE001  # the thread cannot raise it anywhere else
            if not self._over.is_set():
                self.fail(error)

    def _publish_line(self, line: bytes) -> None:
        """Publish a line; skip a malformed one."""
        if self._args.format == "text":
            self.publish(Message(line))
            return
        try:
            message = message_of(read_line(line))
        except MalformedMessage as error:
            _log.warning("module %r skips a line of %s: %s", self.name, self._args.path, error)
            return
        self.publish(message)
