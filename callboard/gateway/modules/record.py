"""The module `record`: appends messages to a commit log."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Literal

from callboard.commitlog import CommitLog, LogError
from callboard.gateway.module import Module, ModuleArguments
from callboard.gateway.wire.message import Message
from callboard.support.nesting import parse_json


class RecordArguments(ModuleArguments):
    """Arguments of a recorder.

    Attributes:
        path: the log's folder.
        topic: the topic of each record; `{name}` is replaced by the property of that name.
        payload: `json` records the parsed content, `bytes` the content unchanged.
    """

    path: str
    topic: str = "/gateway"
    payload: Literal["json", "bytes"] = "json"


class RecordModule(Module):
    """Appends received messages; their properties become headers."""

    Arguments = RecordArguments

    def create(self, args: Mapping[str, Any]) -> None:
        """Open the log."""
        self._args = RecordArguments.read(args)
        self._log = CommitLog(self._args.path)

    def receive(self, message: Message) -> None:
        """Append a message; it survives the end of this process when this returns.

        Raises:
            LogFailed: the disk reports an error; the next message is tried again.
            LogReplaced: the log was removed or replaced: messages are no longer accepted.
        """
        is_json = self._args.payload == "json"
        payload = parse_json(message.content) if is_json else message.content
        headers = dict(message.properties)
        if self._log.may_reopen:
            with suppress(LogError):
                self._log.close()
            self._log = CommitLog(self._args.path)
        self._log.append(filled(self._args.topic, headers), payload, headers=headers)

    def destroy(self) -> None:
        """Flush and close the log."""
        self._log.close()


def filled(template: str, properties: Mapping[str, str]) -> str:
    """Replace names in braces by properties; unknown names stay."""
    for name, text in properties.items():
        template = template.replace("{" + name + "}", text)
    return template
