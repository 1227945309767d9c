"""The module `timer`: publishes messages at regular intervals."""

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from callboard.gateway.module import Module, ModuleArguments
from callboard.kernel.actors import Reminder
from callboard.support.seconds import MAX_SECONDS


class TimerArguments(ModuleArguments):
    """Arguments of a timer.

    Attributes:
        period: seconds between messages.
        content: text of each message; by default the number of the message.
        properties: the properties of each message.
        count: number of messages; by default unlimited.
    """

    period: float = Field(gt=0, le=MAX_SECONDS, strict=False)
    content: str | None = None
    properties: dict[str, str] = {}
    count: int | None = Field(default=None, ge=1)


class TimerModule(Module):
    """Publishes a message every `period` seconds; ticks missed by a busy node are merged."""

    Arguments = TimerArguments

    def create(self, args: Mapping[str, Any]) -> None:
        """Check the arguments."""
        self._args = TimerArguments.read(args)
        self._sent = 0
        self._ticks: Reminder | None = None

    def start(self) -> None:
        """Start publishing."""
        self._ticks = self.every(self._args.period, self._tick)

    def destroy(self) -> None:
        """Stop publishing."""
        if self._ticks is not None:
            self._ticks.cancel()

    def _tick(self) -> None:
        """Publish a message; the last one ends the timer."""
        args = self._args
        self._sent += 1
        if args.count is not None and self._sent >= args.count:
            self.destroy()
        content = str(self._sent) if args.content is None else args.content
        self.publish(content.encode(), args.properties)
