"""The module broker: it knows the modules and their links, and carries what they publish.

    publish ──> one frame (topic + serialized message) ──> inbox of each sink ──> its actor

All methods may be called from any thread at any time, also by a module in its `receive`. One
lock guards modules and links; it is never held while anybody waits or a module's code runs.
`publish` does not take it: each source has a tuple of its sinks, made again when links change.
"""

import asyncio
import contextlib
import uuid
from collections.abc import Iterable
from typing import Any, Self

from actors.errors import MailboxFull
from callboard.gateway.attaching import REMOVE_TIMEOUT, Attaching, refuse_on_loop
from callboard.gateway.errors import InvalidLink, UnknownModule
from callboard.gateway.handle import ModuleHandle
from callboard.gateway.inbox import Inbox
from callboard.gateway.links import ANY, LinkTable
from callboard.gateway.message import Message
from proxies.node import Node

__all__ = ["ModuleBroker"]


class ModuleBroker(Attaching):
    """Carries messages between modules."""

    def __init__(self, node: Node | None = None, name: str = "gateway") -> None:
        """Make a broker with one reference.

        Args:
            node: where the modules' actors live; a node of its own by default, closed with it.
            name: for people, in the url.
        """
        super().__init__(node or Node(name), f"callboard-gateway://{name}/{uuid.uuid4()}")
        self._owns_node = node is None
        self.name = name
        self._references = 1

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
        """Let go of it once; the last one ends all modules. Returns who are left.

        Raises:
            WouldBlock: called on the thread of a running event loop; it is held as before.
        """
        refuse_on_loop("release()", "arelease()")
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

    async def arelease(self) -> int:
        """Awaitable twin of `release`."""
        return await asyncio.to_thread(self.release)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    # --- links ---

    def link(self, source: ModuleHandle | str, sink: Any) -> None:
        """Let a sink receive what a source publishes; `"*"` is every other module.

        Links are counted: one that is added twice delivers once, and is to be removed twice.

        Raises:
            InvalidLink: the sink is `*`.
            UnknownModule: an end is no module of this broker.
        """
        with self._lock:
            origin = self._source(source)
            self._links.add(origin, self._sink(sink))
            self._route(self._modules.values() if origin is None else [origin])

    def unlink(self, source: ModuleHandle | str, sink: Any) -> bool:
        """Remove a link once; False when there is none.

        Raises:
            InvalidLink: the sink is `*`.
            UnknownModule: an end is no module of this broker.
        """
        with self._lock:
            origin = self._source(source)
            was_there = self._links.remove(origin, self._sink(sink))
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

    def sources_of(self, sink: ModuleHandle) -> tuple[ModuleHandle | None, ...]:
        """Return the sources of a sink's links, None for every other module."""
        with self._lock:
            return self._links.sources_of(sink)

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
                    async with asyncio.timeout(timeout):
                        while not inbox.has_room():  # whoever was woken first has taken it
                            await inbox.when_room()
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
