"""The modules of a gateway by their names, and the links between them."""

import asyncio
import logging
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from actors.actor import Actor
from actors.reference import ActorRef
from callboard.gateway.attaching import REMOVE_TIMEOUT, refuse_on_loop
from callboard.gateway.broker import ModuleBroker
from callboard.gateway.configuration import ModuleSpec
from callboard.gateway.errors import (
    DuplicateLink,
    DuplicateModule,
    GatewayError,
    InvalidLink,
    ModuleFailed,
    UnknownModule,
)
from callboard.gateway.events import EventDispatcher, EventKind, GatewayEvent, ModuleStatus
from callboard.gateway.handle import ModuleHandle, ModuleOptions
from callboard.gateway.host import ModuleHost
from callboard.gateway.links import ANY
from callboard.gateway.loaders import Loaded, built_in_loaders, find_module, load
from callboard.gateway.message import Message
from proxies.node import Node

__all__ = ["Roster"]

log = logging.getLogger("callboard.gateway")

Link = tuple[str, str]


class Roster:
    """The part of a gateway that knows names."""

    def __init__(self, node: Node | None, name: str) -> None:
        self.broker = ModuleBroker(node, name)
        self._events = EventDispatcher(name)
        self._lock = threading.RLock()
        self._handles: dict[str, ModuleHandle] = {}
        #: The modules that came from a configuration.
        self._specs: dict[str, ModuleSpec] = {}
        #: As an ordered set.
        self._links: dict[Link, None] = {}
        self._dead_letters: str | None = None
        self._is_started = False

    # --- modules ---

    def modules(self) -> tuple[ModuleStatus, ...]:
        """Return what there is to know of all modules."""
        return tuple(
            ModuleStatus(
                handle.name,
                tuple(
                    ANY if source is None else source.name
                    for source in self.broker.sources_of(handle)
                ),
                handle.waiting,
                handle.counters,
                handle.is_started,
            )
            for handle in self._all()
        )

    def links(self) -> tuple[Link, ...]:
        """Return all links, as pairs of source and sink."""
        with self._lock:
            return tuple(self._links)

    def ref(self, name: str) -> ActorRef[Any]:
        """Return the actor of a module, to be monitored; another one after a restart.

        Raises:
            UnknownModule: there is none of that name.
        """
        ref = self._handle(name).ref
        assert ref is not None
        return ref

    def add_module(
        self,
        name: str,
        module: Any,
        args: Mapping[str, Any] | None = None,
        *,
        options: ModuleOptions | None = None,
        start: bool = True,
    ) -> None:
        """Create a module; it is started if the gateway is.

        Args:
            name: unique in the gateway; any text but `*`.
            module: a class of modules, one module, `package.file:Class`, the name of a
                ready-made module, or a loader with an entrypoint as in a configuration.
            args: for its `create`.
            options: how it is run; in any case messages wait until it was started.
            start: False leaves it to `start_module`, after its links are there.

        Raises:
            DuplicateModule: there is one of that name.
            InvalidEntrypoint: the text or entrypoint names no module.
            ModuleFailed: it could not be created.
        """
        loaded = _loaded(module)
        with self._lock:
            self._check_name(name)
        options = replace(options or ModuleOptions(), hold=True)
        handle = self._create(name, loaded, args or {}, options)
        try:
            with self._lock:
                self._check_name(name)
                self._handles[name] = handle
        except GatewayError:
            self.broker.remove(handle)
            raise
        self._tell("module_list_changed")
        if start and self._is_started:
            self.start_module(name)

    def start_module(self, name: str) -> None:
        """Start a module that `add_module` left alone.

        Raises:
            UnknownModule: there is none of that name.
            ModuleFailed: its `start` raised.
        """
        self.broker.start(self._handle(name))

    def remove_module(self, name: str, timeout: float = REMOVE_TIMEOUT) -> bool:
        """Remove a module and its links; False when there is none of that name.

        It receives what waits for it, for `timeout` seconds at most, and is destroyed.

        Raises:
            WouldBlock: called on the thread of a running event loop; nothing was removed.
        """
        refuse_on_loop("remove_module()", "aremove_module()")
        with self._lock:
            handle = self._handles.pop(name, None)
            self._specs.pop(name, None)
            self._links = {link: None for link in self._links if name not in link}
            if self._dead_letters == name:
                self._dead_letters = None
        if handle is None:
            return False
        self.broker.remove(handle, timeout)
        self._tell("module_list_changed")
        return True

    async def aremove_module(self, name: str, timeout: float = REMOVE_TIMEOUT) -> bool:
        """Awaitable twin of `remove_module`."""
        return await asyncio.to_thread(self.remove_module, name, timeout)

    # --- links and messages ---

    def link(self, source: str, sink: str) -> None:
        """Let a sink receive what a source publishes; `"*"` is every other module.

        Raises:
            DuplicateLink: they are linked already.
            InvalidLink: the sink is `*`.
            UnknownModule: an end is no module of this gateway.
        """
        with self._lock:
            ends = self._ends(source, sink)
            if (source, sink) in self._links:
                msg = f"{source!r} and {sink!r} are linked already"
                raise DuplicateLink(msg)
            self.broker.link(*ends)
            self._links[source, sink] = None

    def unlink(self, source: str, sink: str) -> bool:
        """Undo `link`; False when there is no such link.

        Raises:
            InvalidLink: the sink is `*`.
            UnknownModule: an end is no module of this gateway.
        """
        with self._lock:
            ends = self._ends(source, sink)
            if (source, sink) not in self._links:
                return False
            del self._links[source, sink]
            return self.broker.unlink(*ends)

    def publish(
        self, source: str, content: Any, properties: Mapping[str, str] | None = None
    ) -> None:
        """Publish a message as if a module had; a thread waits for room.

        Raises:
            UnknownModule: there is none of that name.
            MailboxFull: a sink refused it.
        """
        message = content if isinstance(content, Message) else Message(content, properties)
        self.broker.publish(self._handle(source), message)

    # --- inside ---

    def _create(
        self, name: str, loaded: Loaded, args: Mapping[str, Any], options: ModuleOptions
    ) -> ModuleHandle:
        host: type[Actor] = loaded.host or ModuleHost
        return self.broker.add(loaded.factory, args, name=name, options=options, host=host)

    def _start(self, handle: ModuleHandle) -> None:
        try:
            self.broker.start(handle)
        except (ModuleFailed, UnknownModule, TimeoutError) as error:
            log.error("%s", error)  # noqa: TRY400  # the host has logged the traceback
            self._tell("module_failed", handle.name, str(error))

    def _all(self) -> list[ModuleHandle]:
        with self._lock:
            return list(self._handles.values())

    def _handle(self, name: str) -> ModuleHandle:
        handle = self._handles.get(name)
        if handle is None:
            known = ", ".join(map(repr, self._handles)) or "none"
            msg = f"there is no module {name!r}; there are {known}"
            raise UnknownModule(msg)
        return handle

    def _ends(self, source: str, sink: str) -> tuple[ModuleHandle | str, ModuleHandle]:
        if sink == ANY:
            msg = f"{source!r} -> '*': only a source can be all modules"
            raise InvalidLink(msg)
        return ANY if source == ANY else self._handle(source), self._handle(sink)

    def _ends_of(self, source: str, sink: str) -> tuple[ModuleHandle | None, ModuleHandle]:
        return None if source == ANY else self._handles[source], self._handles[sink]

    def _check_name(self, name: Any) -> None:
        if not isinstance(name, str) or not name or name == ANY:
            msg = f"{name!r} is no name of a module: any text but '' and '*' is"
            raise InvalidLink(msg)
        if name in self._handles:
            msg = f"there is a module {name!r} already"
            raise DuplicateModule(msg)

    def _tell(self, kind: EventKind, module: str = "", detail: str = "") -> None:
        if self._events.wants(kind):
            self._events.emit(GatewayEvent(kind, self.modules(), module, detail))


def _loaded(module: Any) -> Loaded:
    if isinstance(module, str):
        return Loaded(find_module(module))
    if isinstance(module, Mapping):
        loaders = built_in_loaders()
        name = str(module.get("name", "python"))
        if name not in loaders:
            msg = f"there is no loader {name!r}; there are {', '.join(loaders)}"
            raise UnknownModule(msg)
        return load(loaders[name], module.get("entrypoint", {}), Path.cwd())
    return Loaded(module)
