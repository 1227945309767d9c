"""A gateway: modules by name, their links, a configuration, events.

    with Gateway.from_file("gateway.toml") as gateway:
        gateway.link("*", "sink")
        gateway.wait()

All methods may be called from any thread, from a module's `receive` and from callbacks of
events.
"""

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, Self

from actors.current import current_cell
from actors.errors import CallboardError, WouldDeadlock
from callboard.gateway.attaching import refuse_on_loop
from callboard.gateway.changes import Changes
from callboard.gateway.configuration import read_configuration, read_file
from callboard.gateway.dead_letters import as_frame
from callboard.gateway.events import EventKind, GatewayEvent
from callboard.gateway.handle import DeadLetter, ModuleHandle
from callboard.gateway.host import Settle
from callboard.gateway.watch import FileWatch, mark_of
from proxies.node import Node

__all__ = ["Gateway"]

log = logging.getLogger("callboard.gateway")

SETTLE_INTERVAL: Final = 0.01
"""Seconds between looks whether all messages were received."""


class Gateway(Changes):
    """Modules that are linked by name."""

    def __init__(self, node: Node | None = None, *, name: str = "gateway") -> None:
        """Make a gateway without modules.

        Args:
            node: where its modules live; one of its own by default, closed with it.
            name: for people.
        """
        super().__init__(node, name)
        self.broker.on_dead_letter = self._dead_letter
        self.broker.on_ended = self._module_ended
        self._is_closed = False
        self._over = threading.Event()
        self._watch: FileWatch | None = None

    @classmethod
    def from_file(
        cls,
        path: Path | str,
        *,
        node: Node | None = None,
        start: bool = True,
        watch: bool = False,
    ) -> Self:
        """Make a gateway of a JSON or TOML file, and start it.

        Args:
            path: of the file; Python modules beside it can be imported.
            node: where its modules live; one of its own by default.
            start: call `start` as well. Without, callbacks can be registered first.
            watch: follow changes of the file; what is wrong in it changes nothing.

        Raises:
            ConfigurationError: the file cannot be used; nothing was made.
            ModuleFailed: a module could not be created; all others were destroyed again.
        """
        path = Path(path)
        seen = mark_of(path)
        configuration = read_configuration(
            read_file(path), source=str(path), folder=path.parent
        )
        gateway = cls(node, name=path.stem)
        try:
            gateway._apply(configuration, is_whole=True)
            gateway._tell("created")
            gateway._tell("module_list_changed")
            if start:
                gateway.start()
        except BaseException:
            gateway.close()
            raise
        if watch:
            gateway._watch = FileWatch(path, gateway._file_changed, seen=seen)
        return gateway

    # --- its life ---

    @property
    def node(self) -> Node:
        """The node that the modules live on."""
        return self.broker.node

    @property
    def url(self) -> str:
        """What no other gateway is called."""
        return self.broker.url

    def start(self, *, leave_out: Iterable[str] = ()) -> None:
        """Start all modules, in their order: from here on they receive.

        A module whose `start` raises is logged and told of as `module_failed`; its restart
        policy says what follows.

        Args:
            leave_out: names of modules that are not started.
        """
        refuse_on_loop("start()", "astart()")
        skipped = set(leave_out)
        with self._lock:
            self._is_started = True
            handles = [h for h in self._handles.values() if not h.is_started]
        for handle in handles:
            if handle.name not in skipped:
                self._start(handle)
        self._tell("started")

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the gateway is closed; False when `timeout` seconds are over before.

        Raises:
            WouldDeadlock: called in a handler, which the gateway's end waits for.
        """
        _refuse_in_handler("wait()")
        return self._over.wait(timeout)

    def settle(self, timeout: float = 10.0) -> bool:
        """Wait until nothing waits and nothing is being received; False when time is over.

        Raises:
            WouldBlock: called on the thread of a running event loop.
            WouldDeadlock: called in a handler: that message is being received.
        """
        _refuse_in_handler("settle()")
        refuse_on_loop("settle()", "asettle()")
        deadline, before = time.monotonic() + timeout, -1
        while time.monotonic() < deadline:
            handles = [h for h in self._all() if h.is_started and h.ref is not None]
            answers = [h.ref.ask(Settle(), timeout=timeout) for h in handles if h.ref]
            for answer in answers:
                with contextlib.suppress(CallboardError):
                    answer.result(max(0.0, deadline - time.monotonic()))
            taken = sum(h.counters.received + h.counters.failed for h in handles)
            if taken == before and not any(h.waiting for h in handles):
                return True
            before = taken
            self._over.wait(SETTLE_INTERVAL)
        return False

    async def astart(self, *, leave_out: Iterable[str] = ()) -> None:
        """Awaitable twin of `start`."""
        await asyncio.to_thread(self.start, leave_out=leave_out)

    async def asettle(self, timeout: float = 10.0) -> bool:
        """Awaitable twin of `settle`."""
        return await asyncio.to_thread(self.settle, timeout)

    def close(self) -> None:
        """Remove all modules, each after it received what waits for it, and end. Idempotent.

        Raises:
            WouldBlock: called on the thread of a running event loop; nothing was closed.
        """
        refuse_on_loop("close()", "aclose()")
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        if self._watch is not None:
            self._watch.close()
        snapshot = self.modules()
        self.broker.release()
        with self._lock:
            self._handles.clear()
        self._events.emit(GatewayEvent("destroyed", snapshot))
        self._over.set()
        self._events.close()

    async def aclose(self) -> None:
        """Awaitable twin of `close`."""
        await asyncio.to_thread(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    # --- events ---

    def on(self, kind: EventKind, callback: Callable[..., object], *args: Any) -> None:
        """Call `callback(event, *args)` on one separate thread, in order, for a kind of events.

        `created`, `started`, `module_list_changed`, `module_failed`, `update_failed`,
        `dead_letter`, `destroyed`.

        Raises:
            TypeError: it cannot be called.
            ValueError: there is no such kind.
        """
        self._events.on(kind, callback, *args)

    def off(self, kind: EventKind, callback: Callable[..., object]) -> None:
        """Call it no more."""
        self._events.off(kind, callback)

    def _dead_letter(self, letter: DeadLetter) -> None:
        if self._events.wants("dead_letter"):
            event = GatewayEvent("dead_letter", (), letter.module, letter.detail, letter)
            self._events.emit(event)
        target = self._handles.get(self._dead_letters or "")
        if target is not None and target.name != letter.module:
            target.inbox.offer(as_frame(letter))

    def _module_ended(self, handle: ModuleHandle, detail: str) -> None:
        log.error("module %r has ended for good: %s", handle.name, detail)
        with self._lock:
            if self._handles.get(handle.name) is handle:
                self._handles.pop(handle.name)
                self._specs.pop(handle.name, None)
                self._links = {link: None for link in self._links if handle.name not in link}
        self._tell("module_failed", handle.name, detail)
        self._tell("module_list_changed")


def _refuse_in_handler(call: str) -> None:
    if current_cell.get() is not None:
        msg = f"{call} in a handler would wait for that handler; call it outside of modules"
        raise WouldDeadlock(msg)
