"""The modules of a broker: how they are added, started, removed, and what their ends mean."""

import asyncio
import contextlib
import itertools
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final

from actors.actor import Actor
from actors.child import Child
from actors.current import current_cell
from actors.errors import ResultTimeout, WouldBlock
from actors.future import Future
from callboard.gateway.errors import BrokerClosed, DuplicateModule, ModuleFailed, UnknownModule
from callboard.gateway.handle import TOPIC_SIZE, DeadLetter, ModuleHandle, ModuleOptions
from callboard.gateway.host import Begin, ModuleHost, Quit, StartModule, maker
from callboard.gateway.links import LinkTable
from callboard.gateway.module import Module
from proxies.node import Node

__all__ = ["REMOVE_TIMEOUT", "Attaching", "refuse_on_loop"]

REMOVE_TIMEOUT: Final = 5.0
"""Seconds that a module may take to receive what waits for it when it is removed."""

CREATE_TIMEOUT: Final = 30.0
"""Seconds that a module on another node may take to be made."""

START_TIMEOUT: Final = 60.0
"""Seconds that a module's `start` may take."""


class Attaching:
    """The part of a module broker that knows modules; one lock guards them and their links."""

    def __init__(self, node: Node, url: str) -> None:
        self.node = node
        #: No other broker has the same.
        self.url = url
        #: Told of each message that is lost, on the thread that lost it: must be quick.
        self.on_dead_letter: Callable[[DeadLetter], None] | None = None
        #: Told of modules that ended for good without having been removed, and why.
        self.on_ended: Callable[[ModuleHandle, str], None] | None = None
        self._lock = threading.Lock()
        self._modules: dict[bytes, ModuleHandle] = {}
        self._links: LinkTable[ModuleHandle] = LinkTable()
        self._numbers = itertools.count(1)
        self._is_closed = False

    def publish(self, source: Any, message: Any, timeout: float | None = None) -> None:
        """Hand a message to every module that is linked to its source."""
        raise NotImplementedError

    def modules(self) -> list[ModuleHandle]:
        """Return all modules, in the order in which they were added."""
        with self._lock:
            return list(self._modules.values())

    def name_of(self, frame: bytes) -> str:
        """Return the name of the module that published a frame; empty if that is gone."""
        handle = self._modules.get(frame[:TOPIC_SIZE])
        return "" if handle is None else handle.name

    def add(
        self,
        module: Any,
        args: Mapping[str, Any] | None = None,
        *,
        name: str = "",
        options: ModuleOptions | None = None,
        host: type[Actor] = ModuleHost,
    ) -> ModuleHandle:
        """Create a module on this thread and start its worker.

        Args:
            module: a class, or whatever makes a module when it is called; or one module.
            args: for its `create`.
            name: for people; any text.
            options: how it is run.
            host: the class of its actor.

        Raises:
            DuplicateModule: this object is a module of this broker already.
            ModuleFailed: the module could not be created.
            BrokerClosed: the broker has ended.
        """
        if not callable(module) and not isinstance(module, Module):
            msg = f"{module!r} is no Module and makes none; derive a class from Module"
            raise TypeError(msg)
        given = module
        factory = (lambda: given) if isinstance(given, Module) else given
        handle = ModuleHandle(
            self,
            next(self._numbers),
            name or getattr(module, "__name__", type(module).__name__),
            given,
            maker(factory, dict(args or {})),
            options or ModuleOptions(),
        )
        with self._lock:
            self._refuse_closed()
            if isinstance(given, Module):
                self._refuse_twice(handle)
            self._modules[handle.topic] = handle
        try:
            self._supervise(handle, host)
            if hasattr(host, "begin") and handle.ref is not None:
                made = handle.ref.ask(Begin(), timeout=CREATE_TIMEOUT)
                if current_cell.get() is None:
                    made.result()
        except Exception as error:
            self._forget(handle)
            self._end_removal(handle)
            msg = f"module {handle.name!r} was not created: {type(error).__name__}: {error}"
            raise ModuleFailed(msg) from error
        with self._lock:
            self._route([handle])
        return handle

    def _supervise(self, handle: ModuleHandle, host: type[Actor]) -> None:
        options = handle.options
        is_detached = options.detached or _wants_a_thread(handle.given)
        kind = host.with_options(detached=True) if is_detached else host
        child = Child(kind, handle, restart=options.restart)
        child.label = handle.name
        supervisor = self.node.supervise([child], intensity=options.intensity)
        handle.supervisor = supervisor
        self.node.monitor(supervisor).add_done_callback(lambda down: self._gone(handle, down))

    def start(self, module: ModuleHandle, timeout: float = START_TIMEOUT) -> None:
        """Let a module start; in a handler this does not wait until it has.

        Raises:
            ModuleFailed: its `start` raised; it is restarted or not, as its policy says.
            UnknownModule: it is no module of this broker.
            ResultTimeout: it takes longer; it goes on.
            WouldBlock: called on the thread of a running event loop; use `astart`.
        """
        refuse_on_loop("start()", "astart()")
        started = self._start(module)
        if current_cell.get() is None:
            self._outcome(module, started, timeout)

    async def astart(self, module: ModuleHandle, timeout: float = START_TIMEOUT) -> None:
        """Awaitable twin of `start`."""
        await asyncio.to_thread(self.start, module, timeout)

    def _start(self, module: ModuleHandle) -> Future[Any]:
        self._check(module)
        assert module.ref is not None
        return module.ref.ask(StartModule(), timeout=None)

    def _outcome(self, module: ModuleHandle, started: Future[Any], timeout: float) -> None:
        try:
            started.result(timeout)
        except (ResultTimeout, WouldBlock):
            raise
        except Exception as error:
            msg = f"module {module.name!r} did not start: {error}"
            raise ModuleFailed(msg) from error

    def remove(self, module: ModuleHandle, timeout: float = REMOVE_TIMEOUT) -> bool:
        """Remove a module and its links; it receives what waits for it, and is destroyed.

        After `timeout` seconds what still waits is lost, and counted. In a handler this does
        not wait. Returns False when the module is gone already.

        Raises:
            WouldBlock: called on the thread of a running event loop; use `aremove`.
        """
        refuse_on_loop("remove()", "aremove()")
        return self._remove(module, timeout)

    def _remove(self, module: ModuleHandle, timeout: float) -> bool:
        if not self._begin_removal(module):
            return False
        if current_cell.get() is not None:
            self.node.runtime.runner.call_later(timeout, self._end_removal, module)
            return True
        with contextlib.suppress(ResultTimeout):
            module.removed.result(timeout)
        self._end_removal(module)
        return True

    async def aremove(self, module: ModuleHandle, timeout: float = REMOVE_TIMEOUT) -> bool:
        """Awaitable twin of `remove`."""
        if not self._begin_removal(module):
            return False
        self.node.runtime.runner.call_later(timeout, self._end_removal, module)
        await module.removed
        return True

    def _begin_removal(self, module: ModuleHandle) -> bool:
        if module.broker is not self or not self._forget(module):
            return False
        module.inbox.quit()
        if module.inbox.cell is None and module.ref is not None:
            module.ref.tell(Quit())  # it does not look into its queue: it was not started
        return True

    def _end_removal(self, module: ModuleHandle) -> None:
        """See that a module is gone, whatever it does."""
        if module.removed.done():
            return
        module.inbox.close()
        if module.ref is not None:
            module.ref.kill()
        if module.supervisor is not None:
            module.supervisor.kill()

    def host_ended(self, handle: ModuleHandle, reason: str) -> None:
        """Close the queue of a module whose actor ended and is not started again."""
        restart = handle.options.restart
        is_over = restart == "temporary" or (restart == "transient" and reason == "normal")
        if is_over and handle.supervisor is not None:
            handle.supervisor.stop()

    def _gone(self, handle: ModuleHandle, down: Future[Any]) -> None:
        """A module's supervisor ended: after its removal, or because it could not live."""
        is_news = self._forget(handle)
        handle.inbox.close()
        handle.removed.set_result(None)
        if is_news and not self._is_closed and self.on_ended is not None:
            self.on_ended(handle, handle.last_end or str(down.result().reason))

    def _forget(self, handle: ModuleHandle) -> bool:
        with self._lock:
            if self._modules.pop(handle.topic, None) is None:
                return False
            self._links.forget([handle])
            handle.sinks = ()
            self._route(self._modules.values())
            return True

    def _route(self, sources: Iterable[ModuleHandle]) -> None:
        """Make the tuples of sinks again; needs the lock."""
        for source in sources:
            source.sinks = tuple(sink.inbox for sink in self._links.sinks_of(source))

    # --- checks ---

    def _check(self, handle: ModuleHandle) -> ModuleHandle:
        if self._modules.get(handle.topic) is not handle:
            msg = f"module {handle.name!r} is not (any more) one of {self.url}"
            raise UnknownModule(msg)
        return handle

    def _refuse_closed(self) -> None:
        if self._is_closed:
            msg = f"{self.url} has ended: its last reference was released"
            raise BrokerClosed(msg)

    def _refuse_twice(self, handle: ModuleHandle) -> None:
        for other in self._modules.values():
            if other.given is handle.given:
                msg = f"{handle.given!r} is module {other.name!r} of this broker already"
                raise DuplicateModule(msg)


def refuse_on_loop(call: str, twin: str) -> None:
    """Refuse to block the thread of an event loop; handlers of actors do not wait anyway."""
    if current_cell.get() is None and asyncio._get_running_loop() is not None:  # noqa: SLF001
        msg = f"{call} would block the event loop; await {twin} instead"
        raise WouldBlock(msg)


def _wants_a_thread(given: Any) -> bool:
    """Say whether a module, or what makes it, is declared to block."""
    made = given.func if isinstance(given, partial) else given
    return getattr(made, "detached", False) is True
