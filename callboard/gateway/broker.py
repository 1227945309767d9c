"""The module broker: it knows the modules and their links, and carries what they publish.

    publish ──> one frame (topic + serialized message) ──> inbox of each sink ──> its actor

All methods may be called from any thread at any time, also by a module in its `receive`. One
lock guards modules and links; it is never held while a caller waits or a module's code runs.
`publish` does not take it: each source has a tuple of its sinks, made again when links change.

A link leads from a source to a sink, or from every other module (`ANY`) to a sink: never from
the sink to itself, and also from modules that come later. Links are counted: one added twice
delivers once and takes two removals. A link from a module to itself is one like any other. An
`ANY` link and a named one to the same sink are two links, and deliver once.
"""

import asyncio
import contextlib
import itertools
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final, Self, TypeVar

from callboard import locks
from callboard.gateway import errors
from callboard.gateway.handle import (
    TOPIC_SIZE,
    DeadLetter,
    ModuleHandle,
    ModuleOptions,
    RemotePlace,
    Where,
)
from callboard.gateway.host import BeginStart, ModuleHost, Quit
from callboard.gateway.module import Module
from callboard.gateway.remote import MakeAgent, RemoteHost
from callboard.gateway.wire.message import Message
from callboard.kernel.actors import Child
from callboard.kernel.checks import limit, seconds
from callboard.kernel.context import current_cell
from callboard.kernel.errors import MailboxFull, ResultTimeout, WouldBlock, WrongArgument
from callboard.kernel.reply import Future
from callboard.kernel.twins import on_a_thread, refuse_loop
from callboard.node import Node
from callboard.support import after_fork
from callboard.support.text import describe, said

#: As the source of a link: every other module.
ANY: Final = "*"

#: Seconds that a module may take to receive what waits for it when it is removed.
REMOVE_TIMEOUT: Final = 5.0

#: Seconds that a module on another node may take to be made.
CREATE_TIMEOUT: Final = 30.0

#: Seconds that a module's `start` may take.
START_TIMEOUT: Final = 60.0

M = TypeVar("M")


class LinkTable(Counter[tuple[M | None, M]]):
    """The links between modules, of whatever type they are; not thread-safe.

    They stand in the order in which they were added, each with its count. Every question costs
    a look at each link.
    """

    def __len__(self) -> int:
        return self.total()

    def add(self, source: M | None, sink: M) -> None:
        """Add a link; a source of None is every other module."""
        self[source, sink] += 1

    def remove(self, source: M | None, sink: M) -> bool:
        """Remove a link once; False when there is none."""
        was_there = (source, sink) in self
        if was_there:
            self[source, sink] -= 1
            if not self[source, sink]:
                del self[source, sink]
        return was_there

    def sinks_of(self, source: M) -> tuple[M, ...]:
        """Return the modules that receive what `source` publishes, each once."""
        sinks = [
            sink
            for origin, sink in self
            if origin == source or (origin is None and sink != source)
        ]
        return tuple(dict.fromkeys(sinks))

    def sources_of(self, sink: M) -> tuple[M | None, ...]:
        """Return the sources of a sink's links, None for an `ANY` link."""
        return tuple(source for source, end in self if end == sink)

    def forget(self, module: M) -> None:
        """Remove all links of a module."""
        for link in [link for link in self if module in link]:
            del self[link]


class ModuleBroker:
    """Carries messages between modules."""

    def __init__(self, node: Node | None = None, name: str = "gateway") -> None:
        """Make a broker with one reference.

        Args:
            node: where the modules' actors live; a node of its own by default, closed with it.
            name: for people, in the url.
        """
        self.node = node or Node(name)
        self._owns_node = node is None
        self.name = name
        #: The name of the broker, unique in the world.
        self.url = f"callboard-gateway://{name}/{uuid.uuid4()}"
        #: Told of each message that is lost, on the thread that lost it: must be quick.
        self.on_dead_letter: Callable[[DeadLetter], None] | None = None
        #: Told of a module whose target or source does not answer (and why), or does again.
        self.on_outage: Callable[[str, str], None] | None = None
        #: Told of modules that ended for good without having been removed, and why.
        self.on_ended: Callable[[ModuleHandle, str], None] | None = None
        self._lock = locks.lock("broker of a gateway", 220)
        after_fork.register(self)
        self._modules: dict[bytes, ModuleHandle] = {}
        self._links: LinkTable[ModuleHandle] = LinkTable()
        self._numbers = itertools.count(1)
        #: How many hold this broker; it ends when none does.
        self.references = 1
        self._is_closed = False

    # --- references ---

    def acquire(self) -> Self:
        """Hold the broker once more.

        Raises:
            BrokerClosed: it has ended.
        """
        with self._lock:
            self._refuse_closed()
            self.references += 1
        return self

    def release(self) -> int:
        """Give up one reference; the last one ends all modules. Returns how many are left.

        Raises:
            WouldBlock: called on the thread of a running event loop; it is held as before.
        """
        refuse_on_loop("release()", "arelease()")
        if after_fork.is_copy(self):
            return 0
        with self._lock:
            if self._is_closed:
                return 0
            self.references -= 1
            if self.references:
                return self.references
            self._is_closed = True
            modules = list(self._modules.values())
        for handle in reversed(modules):
            self.remove(handle)
        if self._owns_node:
            self.node.close()
        return 0

    async def arelease(self) -> int:
        """Awaitable twin of `release`."""
        return await on_a_thread(self.release)

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
        where: Where = None,
    ) -> ModuleHandle:
        """Create a module on this thread and start its worker.

        Args:
            module: a class, or whatever makes a module when it is called; or one module.
            args: for its `create`.
            name: for people; any text.
            options: how it is run.
            where: its actor lives: None for the node's thread, unless its options or class say
                that it is detached; `"thread"` for a thread of its own; or another node.

        Raises:
            DuplicateModule: this object is a module of this broker already.
            ModuleFailed: the module could not be created.
            BrokerClosed: the broker has ended.
        """
        if not callable(module) and not isinstance(module, Module):
            msg = f"{module!r} is no Module and makes none; derive a class from Module"
            raise WrongArgument(msg)
        options = options or ModuleOptions()
        if options.store is not None and isinstance(where, RemotePlace):
            msg = f"module {name!r} is on another node, and can have no store here"
            raise errors.ModuleFailed(msg)
        topic = next(self._numbers).to_bytes(TOPIC_SIZE)
        label = name or getattr(module, "__name__", type(module).__name__)
        about = module, dict(args or {}), options, where
        handle = ModuleHandle(self, topic, label, *about)
        with self._lock:
            self._refuse_closed()
            for other in self._modules.values() if isinstance(module, Module) else ():
                if other.given is module:
                    msg = f"{module!r} is module {other.name!r} of this broker already"
                    raise errors.DuplicateModule(msg)
            self._modules[handle.topic] = handle
        try:
            self._supervise(handle)
            if isinstance(where, RemotePlace) and handle.ref is not None:
                made = handle.ref.ask(MakeAgent(), timeout=CREATE_TIMEOUT)
                if current_cell.get() is None:
                    made.result()
        except Exception as error:
            self._forget(handle)
            self._end_removal(handle)
            msg = f"module {handle.name!r} was not created: {describe(error)}"
            raise errors.ModuleFailed(msg) from error
        with self._lock:
            self._route([handle])
        return handle

    def _supervise(self, handle: ModuleHandle) -> None:
        """Start the actor of a module, with a supervisor of its own."""
        options = handle.options
        host = RemoteHost if isinstance(handle.where, RemotePlace) else ModuleHost
        made = handle.given.func if isinstance(handle.given, partial) else handle.given
        blocks = getattr(made, "detached", False) is True
        if blocks or options.detached or handle.where == "thread":
            host = host.with_options(detached=True)
        child = Child(host, handle, restart=options.restart)
        child.label = handle.name
        supervisor = self.node.supervise([child], intensity=options.intensity)
        handle.supervisor = supervisor
        self.node.monitor(supervisor).add_done_callback(lambda down: self._gone(handle, down))

    def start(self, module: ModuleHandle, timeout: float = START_TIMEOUT) -> None:
        """Let a module start; in a handler this does not wait until it has.

        Raises:
            ModuleFailed: its `start` raised; it is restarted or not, as its policy says.
            UnknownModule: it is not a module of this broker.
            ResultTimeout: it takes longer; it goes on.
            WouldBlock: called on the thread of a running event loop; use `astart`.
        """
        refuse_on_loop("start()", "astart()")
        self._check(module)
        assert module.ref is not None
        started = module.ref.ask(BeginStart(), timeout=None)
        if current_cell.get() is not None:
            return
        try:
            started.result(timeout)
        except (ResultTimeout, WouldBlock):
            raise
        except Exception as error:
            msg = f"module {module.name!r} did not start: {said(error)}"
            raise errors.ModuleFailed(msg) from error

    async def astart(self, module: ModuleHandle, timeout: float = START_TIMEOUT) -> None:
        """Awaitable twin of `start`."""
        await on_a_thread(self.start, module, timeout)

    def remove(self, module: ModuleHandle, timeout: float = REMOVE_TIMEOUT) -> bool:
        """Remove a module and its links; it receives what waits for it, and is destroyed.

        After `timeout` seconds what still waits is lost, and counted. In a handler this does
        not wait. Returns False when the module is gone already.

        Raises:
            WouldBlock: called on the thread of a running event loop; use `aremove`.
        """
        timeout = seconds(timeout)
        refuse_on_loop("remove()", "aremove()")
        if not self._begin_removal(module):
            return False
        if current_cell.get() is not None:
            self.node.context.call_later(timeout, self._end_removal, module)
            return True
        with contextlib.suppress(ResultTimeout):
            module.removed.result(timeout)
        self._end_removal(module)
        return True

    async def aremove(self, module: ModuleHandle, timeout: float = REMOVE_TIMEOUT) -> bool:
        """Awaitable twin of `remove`."""
        return await on_a_thread(self.remove, module, timeout)

    def _begin_removal(self, module: ModuleHandle) -> bool:
        """Unlink a module and let it end; False when it is gone already."""
        if module.broker is not self or not self._forget(module):
            return False
        module.inbox.drain()
        if module.inbox.context is None and module.ref is not None:
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

    def _gone(self, handle: ModuleHandle, down: Future[Any]) -> None:
        """Take note that the supervisor ended: after a removal, or too many restarts."""
        is_news = self._forget(handle)
        handle.inbox.close()
        handle.removed.set_result(None)
        if is_news and not self._is_closed and self.on_ended is not None:
            self.on_ended(handle, handle.last_end or str(down.result().reason))

    def _forget(self, handle: ModuleHandle) -> bool:
        """Remove a module from the tables; False when it is not there."""
        with self._lock:
            if self._modules.pop(handle.topic, None) is None:
                return False
            self._links.forget(handle)
            handle.sinks = ()
            for source in self._modules.values():
                source.sinks = tuple(sink for sink in source.sinks if sink is not handle.inbox)
            return True

    def _route(self, sources: Iterable[ModuleHandle]) -> None:
        """Make the tuples of sinks again; needs the lock."""
        for source in sources:
            source.sinks = tuple(sink.inbox for sink in self._links.sinks_of(source))

    # --- links ---

    def link(self, source: ModuleHandle | str, sink: Any) -> None:
        """Let a sink receive what a source publishes; `"*"` is every other module.

        Links are counted: one that is added twice delivers once, and is to be removed twice.

        Raises:
            InvalidLink: the sink is `*`.
            UnknownModule: an end is not a module of this broker.
        """
        with self._lock:
            origin, end = self._ends(source, sink)
            self._links.add(origin, end)
            self._route(self._modules.values() if origin is None else [origin])

    def unlink(self, source: ModuleHandle | str, sink: Any) -> bool:
        """Remove a link once; False when there is none.

        Raises:
            InvalidLink: the sink is `*`.
            UnknownModule: an end is not a module of this broker.
        """
        with self._lock:
            origin, end = self._ends(source, sink)
            was_there = self._links.remove(origin, end)
            self._route(self._modules.values() if origin is None else [origin])
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

    def links(self) -> list[tuple[ModuleHandle | None, ModuleHandle]]:
        """Return the links, each once, as pairs of source and sink; None is every source."""
        with self._lock:
            return list(self._links)

    def sources_of(self, sink: ModuleHandle) -> tuple[ModuleHandle | None, ...]:
        """Return the sources of a sink's links, None for every other module."""
        with self._lock:
            return self._links.sources_of(sink)

    def _ends(
        self, source: ModuleHandle | str, sink: Any
    ) -> tuple[ModuleHandle | None, ModuleHandle]:
        """Return the ends of a link; a source of None is every other module."""
        origin = self._check(source) if isinstance(source, ModuleHandle) else None
        if origin is None and source != ANY:
            msg = f"{source!r} is no source of a link; give what add() returned, or '*'"
            raise errors.InvalidLink(msg)
        if not isinstance(sink, ModuleHandle):
            msg = f"{sink!r} is no sink of a link; give what add() returned"
            raise errors.InvalidLink(msg)
        return origin, self._check(sink)

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
            TypeError: it is not a message.
            UnknownModule: the source is not a module of this broker.
        """
        if message.__class__ is not Message:
            msg = f"{message!r} is no Message; make one of bytes: Message(content, properties)"
            raise WrongArgument(msg)
        if source.__class__ is not ModuleHandle or source.broker is not self:
            self._refuse_source(source)
        sinks = source.sinks
        if not sinks:
            if source.removed.done():
                self._check(source)
            source.note_unlinked()
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
                    for other in sinks[index + 1 :]:  # they count theirs; one error is told
                        with contextlib.suppress(MailboxFull, TimeoutError):
                            other.put(frame, timeout)
                    raise

    async def apublish(self, source: Any, message: Any, timeout: float | None = None) -> None:
        """Awaitable twin of `publish`: it awaits room for one message in each full sink."""
        timeout = limit(timeout)
        for inbox in source.sinks if isinstance(source, ModuleHandle) else ():
            if inbox.bounds.on_full == "wait" and not inbox.has_room():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(timeout):
                        while not inbox.has_room():  # another waiter may have taken it
                            await inbox.when_room()
        self.publish(source, message, timeout)

    # --- checks ---

    def _check(self, handle: ModuleHandle) -> ModuleHandle:
        """Return the handle, if it is that of a module of this broker."""
        if self._modules.get(handle.topic) is not handle:
            msg = f"module {handle.name!r} is not (any more) one of {self.url}"
            raise errors.UnknownModule(msg)
        return handle

    def _refuse_closed(self) -> None:
        """Raise when the broker has ended."""
        if self._is_closed:
            msg = f"{self.url} has ended: its last reference was released"
            raise errors.BrokerClosed(msg)

    def _refuse_source(self, source: object) -> None:
        """Raise because a message is published by what is not a module here."""
        if isinstance(source, ModuleHandle):
            msg = f"{source!r} belongs to another broker than {self.url}"
        else:
            msg = f"{source!r} is no module; publish as what add() returned"
        raise errors.UnknownModule(msg)


def refuse_on_loop(call: str, twin: str) -> None:
    """Refuse to block the thread of an event loop; handlers of actors do not wait anyway."""
    if current_cell.get() is None:
        refuse_loop(call, twin)
