"""The module broker: it has the modules and their links, and transports their messages.

    publish ──> one frame (topic + serialized message) ──> inbox of each sink ──> its actor

All methods may be called from any thread at any time, even by a module in its `receive`. One
lock guards modules and links; it is never held while a caller waits or a module's code runs.
`publish` does not acquire it: each source has a tuple of its sinks, rebuilt when links change.

A link leads from a source to a sink, or from every other module (`ANY`) to a sink: not from the
sink to itself, but also from modules that are added later. Links are counted: one that was
added twice delivers once and must be removed twice. A module may be linked to itself. An `ANY`
link and a named one to the same sink are two links, and deliver once.
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
from callboard.arguments import limit, seconds
from callboard.closing import refuse_loop, twin
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
from callboard.kernel.context import current_cell
from callboard.kernel.errors import MailboxFull, ResultTimeout, WouldBlock, WrongArgument
from callboard.kernel.reply import Future
from callboard.node import Node
from callboard.support import after_fork
from callboard.support.text import describe, error_text

#: As the source of a link: every other module.
ANY: Final = "*"

#: Seconds for a module that is removed to receive its queued messages.
REMOVE_TIMEOUT: Final = 5.0

#: Seconds for the creation of a module on another node.
CREATE_TIMEOUT: Final = 30.0

#: Seconds for a module's `start`.
START_TIMEOUT: Final = 60.0

M = TypeVar("M")


class LinkTable(Counter[tuple[M | None, M]]):
    """The links between modules of any type; not thread-safe.

    Links are in the order in which they were added, each with its count. Every query scans all
    links.
    """

    def __len__(self) -> int:
        return self.total()

    def add(self, source: M | None, sink: M) -> None:
        """Add a link; a source of None is every other module."""
        self[source, sink] += 1

    def remove(self, source: M | None, sink: M) -> bool:
        """Remove a link once; return False if there is none."""
        was_there = (source, sink) in self
        if was_there:
            self[source, sink] -= 1
            if not self[source, sink]:
                del self[source, sink]
        return was_there

    def sinks_of(self, source: M) -> tuple[M, ...]:
        """Return the modules that receive messages of `source`, each once."""
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
    """Transports messages between modules."""

    def __init__(self, node: Node | None = None, name: str = "gateway") -> None:
        """Make a broker with one reference.

        Args:
            node: the node on which the modules' actors run; by default the broker makes one and
                closes it.
            name: a name for people, shown in the URL.
        """
        self.node = node or Node(name)
        self._owns_node = node is None
        self.name = name
        #: The globally unique name of the broker.
        self.url = f"callboard-gateway://{name}/{uuid.uuid4()}"
        #: Called for each lost message, on the thread that lost it: must be quick.
        self.on_dead_letter: Callable[[DeadLetter], None] | None = None
        #: Called when the target or source of a module fails, with the error, or works again.
        self.on_outage: Callable[[str, str], None] | None = None
        #: Called for modules that ended for good without being removed, with the reason.
        self.on_ended: Callable[[ModuleHandle, str], None] | None = None
        self._lock = locks.lock("broker of a gateway", 220)
        after_fork.register(self)
        self._modules: dict[bytes, ModuleHandle] = {}
        self._links: LinkTable[ModuleHandle] = LinkTable()
        self._numbers = itertools.count(1)
        #: The broker ends when this reaches 0.
        self.references = 1
        self._is_closed = False

    # --- references ---

    def acquire(self) -> Self:
        """Add a reference.

        Raises:
            BrokerClosed: the broker has ended.
        """
        with self._lock:
            self._refuse_closed()
            self.references += 1
        return self

    def release(self) -> int:
        """Remove a reference; the last one ends all modules. Returns the number that is left.

        Raises:
            WouldBlock: called on the thread of a running event loop; the reference is kept.
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

    arelease = twin(release)

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
        """Return the name of the module that published a frame; empty if it was removed."""
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
            module: a class or another factory of modules; or a module.
            args: arguments for the module's `create`.
            name: a name for people; any text.
            options: the options of the module.
            where: its actor runs: None for the node's thread, unless its options or class say
                that it is detached; `"thread"` for a separate thread; or another node.

        Raises:
            DuplicateModule: this object is already a module of this broker.
            ModuleFailed: the module could not be created.
            BrokerClosed: the broker has ended.
        """
        if not callable(module) and not isinstance(module, Module):
            msg = f"{module!r} is not a Module or a factory of one; derive a class from Module"
            raise WrongArgument(msg)
        options = options or ModuleOptions()
        if options.store is not None and isinstance(where, RemotePlace):
            msg = f"module {name!r} is on another node, so it cannot have a store on this one"
            raise errors.ModuleFailed(msg)
        topic = next(self._numbers).to_bytes(TOPIC_SIZE)
        label = name or getattr(module, "__name__", type(module).__name__)
        rest = module, dict(args or {}), options, where
        handle = ModuleHandle(self, topic, label, *rest)
        with self._lock:
            self._refuse_closed()
            for other in self._modules.values() if isinstance(module, Module) else ():
                if other.given is module:
                    msg = f"{module!r} is already module {other.name!r} of this broker"
                    raise errors.DuplicateModule(msg)
            self._modules[handle.topic] = handle
        try:
            self._supervise(handle)
            if isinstance(where, RemotePlace) and handle.ref is not None:
                creation = handle.ref.ask(MakeAgent(), timeout=CREATE_TIMEOUT)
                if current_cell.get() is None:
                    creation.result()
        except Exception as error:
            self._forget(handle)
            self._end_removal(handle)
            msg = f"module {handle.name!r} was not created: {describe(error)}"
            raise errors.ModuleFailed(msg) from error
        with self._lock:
            self._route([handle])
        return handle

    def _supervise(self, handle: ModuleHandle) -> None:
        """Start the actor of a module below a supervisor of this module alone."""
        options = handle.options
        host = RemoteHost if isinstance(handle.where, RemotePlace) else ModuleHost
        factory = handle.given.func if isinstance(handle.given, partial) else handle.given
        blocks = getattr(factory, "detached", False) is True
        if blocks or options.detached or handle.where == "thread":
            host = host.with_options(detached=True)
        child = Child(host, handle, restart=options.restart)
        child.label = handle.name
        supervisor = self.node.supervise([child], intensity=options.intensity)
        handle.supervisor = supervisor
        self.node.monitor(supervisor).add_done_callback(
            lambda down: self._supervisor_ended(handle, down)
        )

    def start(self, module: ModuleHandle, timeout: float = START_TIMEOUT) -> None:
        """Start a module; in a handler, return before it has started.

        Raises:
            ModuleFailed: the module's `start` raised; its policy decides whether it is
                restarted.
            UnknownModule: the argument is not a module of this broker.
            ResultTimeout: the module did not start in time; it continues to start.
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
            msg = f"module {module.name!r} did not start: {error_text(error)}"
            raise errors.ModuleFailed(msg) from error

    astart = twin(start)

    def remove(self, module: ModuleHandle, timeout: float = REMOVE_TIMEOUT) -> bool:
        """Remove a module and its links, after it has received its queued messages.

        Messages that are left after `timeout` seconds are lost, and counted. In a handler this
        does not wait. Returns False if the module was removed before.

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

    aremove = twin(remove)

    def _begin_removal(self, module: ModuleHandle) -> bool:
        """Unlink a module and let it end; return False if it was removed before."""
        if module.broker is not self or not self._forget(module):
            return False
        module.inbox.drain()
        if module.inbox.context is None and module.ref is not None:
            module.ref.tell(Quit())  # it was not started, so it does not read its queue
        return True

    def _end_removal(self, module: ModuleHandle) -> None:
        """Make sure that a module has ended, even if it hangs."""
        if module.removed.done():
            return
        module.inbox.close()
        if module.ref is not None:
            module.ref.kill()
        if module.supervisor is not None:
            module.supervisor.kill()

    def _supervisor_ended(self, handle: ModuleHandle, down: Future[Any]) -> None:
        """Handle the end of a supervisor: after a removal, or after too many restarts."""
        was_there = self._forget(handle)
        handle.inbox.close()
        handle.removed.set_result(None)
        if was_there and not self._is_closed and self.on_ended is not None:
            self.on_ended(handle, handle.last_end or str(down.result().reason))

    def _forget(self, handle: ModuleHandle) -> bool:
        """Remove a module from the tables; return False if it is not there."""
        with self._lock:
            if self._modules.pop(handle.topic, None) is None:
                return False
            self._links.forget(handle)
            handle.sinks = ()
            for source in self._modules.values():
                source.sinks = tuple(sink for sink in source.sinks if sink is not handle.inbox)
            return True

    def _route(self, sources: Iterable[ModuleHandle]) -> None:
        """Rebuild the tuples of sinks; the caller must hold the lock."""
        for source in sources:
            source.sinks = tuple(sink.inbox for sink in self._links.sinks_of(source))

    # --- links ---

    def link(self, source: ModuleHandle | str, sink: Any) -> None:
        """Link a sink to a source to receive its messages; `"*"` is every other module.

        Links are counted: one that is added twice delivers once, and must be removed twice.

        Raises:
            InvalidLink: the sink is `*`.
            UnknownModule: an end is not a module of this broker.
        """
        with self._lock:
            origin, end = self._ends(source, sink)
            self._links.add(origin, end)
            self._route(self._modules.values() if origin is None else [origin])

    def unlink(self, source: ModuleHandle | str, sink: Any) -> bool:
        """Remove a link once; return False if there is none.

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
        """Replace all links at once; a source of None is every module except the leaving ones.

        A publish sees either all old links or all new ones.
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
            msg = (
                f"{source!r} is not a link source; pass the handle that add() returned, or '*'"
            )
            raise errors.InvalidLink(msg)
        if not isinstance(sink, ModuleHandle):
            msg = f"{sink!r} is not a sink of a link; pass the handle that add() returned"
            raise errors.InvalidLink(msg)
        return origin, self._check(sink)

    # --- messages ---

    def publish(self, source: Any, message: Any, timeout: float | None = None) -> None:
        """Send a message to every module that is linked to its source.

        The message was serialized when it was made; each sink reads a separate copy. A full
        sink follows the policy of its queue, see `inbox`; the other sinks get the message
        anyway.

        Args:
            source: the module that publishes.
            message: the message.
            timeout: seconds that a thread waits for room in each sink; None for no limit.

        Raises:
            MailboxFull: a sink refused it.
            PublishTimeout: a sink had no room in time.
            TypeError: the argument is not a message.
            UnknownModule: the source is not a module of this broker.
        """
        if message.__class__ is not Message:
            msg = (
                f"{message!r} is not a Message; make one of bytes: Message(content, properties)"
            )
            raise WrongArgument(msg)
        if source.__class__ is not ModuleHandle or source.broker is not self:
            self._refuse_source(source)
        sinks = source.sinks
        if not sinks:
            if source.removed.done():
                self._check(source)
            source.count_unlinked()
            return
        frame = source.topic + message.data
        for index, inbox in enumerate(sinks):
            if len(inbox.items) < inbox.room:
                inbox.items.append(frame)
                if not inbox.wake_pending:
                    inbox.wake()
            else:
                try:
                    inbox.put(frame, timeout)
                except (MailboxFull, TimeoutError):
                    for other in sinks[index + 1 :]:  # they count losses; one error is raised
                        with contextlib.suppress(MailboxFull, TimeoutError):
                            other.put(frame, timeout)
                    raise

    async def apublish(self, source: Any, message: Any, timeout: float | None = None) -> None:
        """Awaitable twin of `publish`: awaits room for one message in each full sink."""
        timeout = limit(timeout)
        for inbox in source.sinks if isinstance(source, ModuleHandle) else ():
            if inbox.bounds.on_full == "wait" and not inbox.has_room():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(timeout):
                        while not inbox.has_room():  # another waiter may have used it
                            await inbox.when_room()
        self.publish(source, message, timeout)

    # --- checks ---

    def _check(self, handle: ModuleHandle) -> ModuleHandle:
        """Return the handle if its module belongs to this broker."""
        if self._modules.get(handle.topic) is not handle:
            msg = f"module {handle.name!r} does not belong to {self.url}, or was removed"
            raise errors.UnknownModule(msg)
        return handle

    def _refuse_closed(self) -> None:
        """Raise if the broker has ended."""
        if self._is_closed:
            msg = f"{self.url} has ended: its last reference was released"
            raise errors.BrokerClosed(msg)

    def _refuse_source(self, source: object) -> None:
        """Raise because the source of a message is not a module of this broker."""
        if isinstance(source, ModuleHandle):
            msg = f"{source!r} belongs to another broker than {self.url}"
        else:
            msg = f"{source!r} is not a module; pass the handle that add() returned"
        raise errors.UnknownModule(msg)


def refuse_on_loop(call: str, twin: str) -> None:
    """Refuse to block the thread of an event loop; in handlers of actors nothing waits."""
    if current_cell.get() is None:
        refuse_loop(call, twin)
