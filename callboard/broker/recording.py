"""Recordings: what topics bring, kept in a log."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from actors.current import current_cell
from actors.errors import CallboardError, WouldBlock
from callboard.broker.recorder import Recorder
from callboard.commitlog import CommitLog, LogCorrupt
from callboard.endpoint.topic import RESERVED, checked_topic

if TYPE_CHECKING:
    from callboard.endpoint.hub import Hub

__all__ = ["Recording"]

STOP_LIMIT: Final = 5.0
"""Seconds that the core may take to hand over what was published before the end."""


class Recording:
    """Records what topics bring into a log, until it is closed. Made by an endpoint.

    Each message is a record: topic, the time when it came, the id of the node that published
    it as sender, and the value. A recording into a log that exists goes on at its end.

    Attributes:
        topics: What is recorded: every topic that begins with one of these.
        folder: The directory of the log.
        start: The offset of the first record of this recording.
        resumed: Time of the last record that was there before, or None; in nanoseconds.
    """

    def __init__(
        self,
        hub: "Hub",
        topics: tuple[str, ...],
        make_log: Callable[[], CommitLog],
        closed: Callable[[Any], object] = lambda _: None,
    ) -> None:
        """Use `Endpoint.record`."""
        self.topics = tuple(map(checked_topic, topics))
        self._hub = hub
        self._closed_told = closed
        self._is_closed = False
        self._recorder = Recorder(hub, make_log, self._wants_reserved)
        log = self._recorder.log
        self.folder = Path(log.folder)
        self.start = log.end
        self.resumed = _latest_time(log)
        hub.add_receiver(self._recorder, self.topics, sees_own=True)

    def _wants_reserved(self, topic: str) -> bool:
        """Whether a topic of the endpoints themselves was asked for by name."""
        return any(RESERVED in wanted and topic.startswith(wanted) for wanted in self.topics)

    # --- seeing ---

    @property
    def end(self) -> int:
        """The offset behind the newest record."""
        return self._recorder.log.end

    @property
    def durable(self) -> int:
        """The offset behind all records that outlive the machine."""
        return self._recorder.log.durable

    @property
    def recorded(self) -> int:
        """Messages that this recording has put into the log."""
        return self._recorder.recorded

    @property
    def lost(self) -> int:
        """Messages that came and are not in the log: the disk was too slow, or refused."""
        return self._recorder.lost

    @property
    def waiting(self) -> int:
        """Messages that came and are not written yet."""
        return self._recorder.waiting

    @property
    def error(self) -> str:
        """Why the disk refuses just now; "" while it does not."""
        return self._recorder.error

    def __repr__(self) -> str:
        return f"<Recording of {', '.join(self.topics)} in {self.folder}>"

    # --- waiting ---

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until all that came or was published here before is durable.

        Returns False when that was not so within `timeout` seconds.

        Raises:
            WouldBlock: called on the thread of a running event loop.
            LogFailed: the disk refuses.
        """
        self._refuse_loop("flush")
        self._take_published(STOP_LIMIT if timeout is None else timeout)
        if not self._recorder.reach(timeout):
            return False
        self._recorder.log.flush()
        return True

    async def aflush(self, timeout: float | None = None) -> bool:
        """Awaitable twin of `flush`."""
        return await asyncio.get_running_loop().run_in_executor(None, self.flush, timeout)

    # --- the end ---

    def close(self) -> None:
        """Write what came before, make it durable, and close the log. Idempotent.

        Raises:
            WouldBlock: called on the thread of a running event loop.
        """
        if self._is_closed:
            return
        self._refuse_loop("close")
        self._is_closed = True
        self._take_published(STOP_LIMIT)
        removed = self._hub.remove_receiver(self._recorder)
        if current_cell.get() is None:
            with suppress(CallboardError):  # the node has ended
                removed.result(STOP_LIMIT)
        self._recorder.end()
        self._hub.relax(self._recorder)
        self._closed_told(self)

    async def aclose(self) -> None:
        """Awaitable twin of `close`."""
        await asyncio.get_running_loop().run_in_executor(None, self.close)

    def _take_published(self, timeout: float) -> None:
        """Let the core hand over what was published; not where its node would stand still."""
        if current_cell.get() is None and not self._hub.node.runtime.closed:
            with suppress(CallboardError):
                self._hub.flushed(timeout)

    def _refuse_loop(self, name: str) -> None:
        if asyncio._get_running_loop() is not None:  # noqa: SLF001
            msg = f"{name}() would block the event loop; await recording.a{name}() instead"
            raise WouldBlock(msg)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


def _latest_time(log: CommitLog) -> int | None:
    """Return the time of the last record; None if there is none, or it is damaged."""
    with suppress(LogCorrupt):
        last = next(log.read(max(log.start, log.end - 1)), None)
        return None if last is None else last.time
    return None
