"""The module broker: it knows the modules and their links, and carries what they publish.

    publish ──> one frame (topic + serialized message) ──> inbox of each sink ──> its actor

All methods may be called from any thread at any time, also by a module in its `receive`. One
lock guards modules and links; it is never held while anybody waits or a module's code runs.
`publish` does not take it: each source has a tuple of its sinks, made again when links change.
"""

import asyncio
import contextlib
import itertools
import threading
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Self

from actors.actor import Actor
from actors.child import Child
from actors.current import current_cell
from actors.errors import MailboxFull, ResultTimeout, WouldBlock
from actors.future import Future
from callboard.gateway.errors import (
    BrokerClosed,
    DuplicateModule,
    InvalidLink,
    ModuleFailed,
    UnknownModule,
)
from callboard.gateway.handle import TOPIC_SIZE, DeadLetter, ModuleHandle, ModuleOptions
from callboard.gateway.host import Begin, ModuleHost, Quit, StartModule, maker
from callboard.gateway.inbox import Inbox
from callboard.gateway.links import ANY, LinkTable
from callboard.gateway.message import Message
from callboard.gateway.module import Module
from proxies.node import Node

__all__ = ["REMOVE_TIMEOUT", "ModuleBroker"]

REMOVE_TIMEOUT: Final = 5.0
"""Seconds that a module may take to receive what waits for it when it is removed."""

CREATE_TIMEOUT: Final = 30.0
"""Seconds that a module on another node may take to be made."""

START_TIMEOUT: Final = 60.0
"""Seconds that a module's `start` may take."""


class ModuleBroker:
    """Carries messages between modules."""

    def __init__(self, node: Node | None = None, name: str = "gateway") -> None:
        """Make a broker with one reference.

        Args:
            node: where the modules' actors live; a node of its own by default, closed with it.
            name: for people, in the url.
        """
        self._owns_node = node is None
        self.node = node or Node(name)
        self.name = name
        #: No other broker has the same.
        self.url = f"callboard-gateway://{name}/{uuid.uuid4()}"
        #: Told of each message that is lost, on the thread that lost it: must be quick.
        self.on_dead_letter: Callable[[DeadLetter], None] | None = None
        #: Told of modules that ended for good without having been removed, and why.
        self.on_ended: Callable[[ModuleHandle, str], None] | None = None
        self._lock = threading.Lock()
        self._modules: dict[bytes, ModuleHandle] = {}
        self._links: LinkTable[ModuleHandle] = LinkTable()
        self._numbers = itertools.count(1)
        self._references = 1
        self._is_closed = False

    # --- references ---

    @property
    def references(self) -> int:
        """How many hold this broker; it ends when none does."""
        return self._references

    def acquire(self) -> Self:
        """Hold the broker once more.

        Raises:
            BrokerClosed: it has ended.
        """
        with self._lock:
            self._refuse_closed()
            self._references += 1
        return self

    def release(self) -> int:
        """Let go of it once; the last one ends all modules. Returns who are left."""
        with self._lock:
            if self._is_closed:
                return 0
            self._references -= 1
            if self._references:
                return self._references
            self._is_closed = True
            modules = list(self._modules.values())
        for handle in reversed(modules):
            self._remove(handle, REMOVE_TIMEOUT)
        if self._owns_node:
            self.node.close()
        return 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    # --- modules ---

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
        kind = host.with_options(detached=True) if options.detached else host
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
        """
        started = self._start(module)
        if current_cell.get() is None:
            self._outcome(module, started, timeout)

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
        if current_cell.get() is None and asyncio._get_running_loop() is not None:  # noqa: SLF001
            msg = "remove() would block the event loop; await aremove(…) instead"
            raise WouldBlock(msg)
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

    # --- links ---

    def link(self, source: ModuleHandle | str, sink: Any) -> None:
        """Let a sink receive what a source publishes; `"*"` is every other module.

        Links are counted: one that is added twice delivers once, and is to be removed twice.

        Raises:
            InvalidLink: the sink is `*`.
            UnknownModule: an end is no module of this broker.
        """
        with self._lock:
            self._links.add(self._source(source), self._sink(sink))
            self._route(self._modules.values() if source == ANY else [source])

    def unlink(self, source: ModuleHandle | str, sink: Any) -> bool:
        """Remove a link once; False when there is none.

        Raises:
            InvalidLink: the sink is `*`.
            UnknownModule: an end is no module of this broker.
        """
        with self._lock:
            was_there = self._links.remove(self._source(source), self._sink(sink))
            self._route(self._modules.values() if source == ANY else [source])
            return was_there

    def rewire(
        self,
        links: Iterable[tuple[ModuleHandle | None, ModuleHandle]],
        leaving: Iterable[ModuleHandle] = (),
    ) -> None:
        """Replace all links at once; a source of None is every other module but those leaving.

        No publish sees some of the old links and some of the new ones.
        """
        with self._lock:
            self._links = LinkTable()
            for source, sink in links:
                if sink.topic in self._modules and (
                    source is None or source.topic in self._modules
                ):
                    self._links.add(source, sink)
            self._route(self._modules.values())
            for handle in leaving:
                handle.sinks = ()

    def sources_of(self, sink: ModuleHandle) -> tuple[ModuleHandle | None, ...]:
        """Return the sources of a sink's links, None for every other module."""
        with self._lock:
            return self._links.sources_of(sink)

    def _route(self, sources: Any) -> None:
        """Make the tuples of sinks again; needs the lock."""
        for source in sources:
            source.sinks = tuple(sink.inbox for sink in self._links.sinks_of(source))

    def _source(self, source: ModuleHandle | str) -> ModuleHandle | None:
        if isinstance(source, ModuleHandle):
            return self._check(source)
        if source == ANY:
            return None
        msg = f"{source!r} is no source of a link; give what add() returned, or '*'"
        raise InvalidLink(msg)

    def _sink(self, sink: Any) -> ModuleHandle:
        if isinstance(sink, ModuleHandle):
            return self._check(sink)
        msg = f"{sink!r} is no sink of a link; give what add() returned"
        raise InvalidLink(msg)

    # --- messages ---

    def publish(self, source: Any, message: Any, timeout: float | None = None) -> None:
        """Hand a message to every module that is linked to its source.

        It was serialized when it was made; each sink reads its own copy. What a full sink does
        is its queue's policy, see `inbox`; the other sinks get the message all the same.

        Args:
            source: the module that publishes.
            message: what it publishes.
            timeout: seconds that a thread waits for room in each sink; None for no limit.

        Raises:
            MailboxFull: a sink refused it.
            PublishTimeout: a sink had no room in time.
            TypeError: it is no message.
            UnknownModule: the source is no module of this broker.
        """
        if message.__class__ is not Message:
            msg = f"{message!r} is no Message; make one of bytes: Message(content, properties)"
            raise TypeError(msg)
        if source.__class__ is not ModuleHandle or source.broker is not self:
            self._refuse_source(source)
        sinks = source.sinks
        if not sinks:
            self._publish_to_nobody(source)
            return
        frame = source.topic + message.data
        for index, inbox in enumerate(sinks):
            if len(inbox.items) < inbox.room:
                inbox.items.append(frame)
                if not inbox.is_poked:
                    inbox.poke()
            else:
                try:
                    inbox.put(frame, timeout)
                except (MailboxFull, TimeoutError):
                    self._publish_rest(frame, sinks[index + 1 :], timeout)
                    raise

    async def apublish(self, source: Any, message: Any, timeout: float | None = None) -> None:
        """Awaitable twin of `publish`: it awaits room for one message in each full sink."""
        for inbox in source.sinks if isinstance(source, ModuleHandle) else ():
            if inbox.bounds.on_full == "wait" and not inbox.has_room():
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(_room(inbox), timeout)
        self.publish(source, message, timeout)

    def _publish_rest(
        self, frame: bytes, sinks: tuple[Inbox, ...], timeout: float | None
    ) -> None:
        """Hand a frame to the other sinks of a publish that one of them refused."""
        for inbox in sinks:
            with contextlib.suppress(MailboxFull, TimeoutError):  # counted; one error is told
                inbox.put(frame, timeout)

    def _publish_to_nobody(self, source: ModuleHandle) -> None:
        if source.removed.done():
            self._check(source)
        source.note_unlinked()

    # --- checks ---

    def _refuse_source(self, source: object) -> None:
        if isinstance(source, ModuleHandle):
            msg = f"{source!r} belongs to another broker than {self.url}"
        else:
            msg = f"{source!r} is no module; publish as what add() returned"
        raise UnknownModule(msg)

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


async def _room(inbox: Inbox) -> None:
    await inbox.when_room()
