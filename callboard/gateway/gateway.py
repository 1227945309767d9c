"""A gateway: modules by name, their links, a configuration, events.

    with Gateway.from_file("gateway.toml") as gateway:
        gateway.link("*", "sink")
        gateway.wait()

All methods may be called from any thread, from a module's `receive` and from callbacks of
events.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Self

from callboard import locks
from callboard.gateway import configuration, errors
from callboard.gateway.broker import ANY, REMOVE_TIMEOUT, ModuleBroker, refuse_on_loop
from callboard.gateway.configuration import Configuration, FileWatch, Loaded, ModuleSpec
from callboard.gateway.events import EventDispatcher, EventKind, GatewayEvent, ModuleStatus
from callboard.gateway.handle import DeadLetter, ModuleHandle, ModuleOptions
from callboard.gateway.host import Settle
from callboard.gateway.wire.message import Message
from callboard.kernel.actors import ActorRef
from callboard.kernel.checks import limit, require, seconds
from callboard.kernel.context import current_cell
from callboard.kernel.errors import CallboardError, WouldDeadlock
from callboard.kernel.twins import Closing, on_a_thread
from callboard.node import Node

_log = logging.getLogger("callboard.gateway")

#: Seconds between looks whether all messages were received.
SETTLE_INTERVAL: Final = 0.01

LinkNames = tuple[str, str]


class Gateway(Closing):
    """Modules that are linked by name."""

    def __init__(self, node: Node | None = None, *, name: str = "gateway") -> None:
        """Make a gateway without modules.

        Args:
            node: where its modules live; one of its own by default, closed with it.
            name: for people.
        """
        require(isinstance(node, Node | None), "Gateway(node) takes a Node", node)
        require(isinstance(name, str), "the name of a gateway is a text", name)
        self.broker = ModuleBroker(node, name)
        self.broker.on_dead_letter = self._dead_letter
        self.broker.on_ended = self._module_ended
        self.broker.on_outage = lambda name, why: self._tell(
            "outage" if why else "recovered", name, why
        )
        self._events = EventDispatcher(name)
        self._lock = locks.lock("modules of a gateway", 210, reentrant=True)
        #: Held while a configuration is taken over.
        self._updating = locks.lock("update of a gateway", 200, reentrant=True, runs_users=True)
        self._handles: dict[str, ModuleHandle] = {}
        #: The modules that came from a configuration.
        self._specs: dict[str, ModuleSpec] = {}
        self._dead_letters: str | None = None
        self._is_started = self._is_closed = False
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
        require(isinstance(path, str | Path), "the path of a JSON or TOML file is a text", path)
        path = Path(path)
        seen = configuration.mark_of(path)
        found = configuration.read_configuration_file(path)
        gateway = cls(node, name=path.stem)
        try:
            gateway._apply(found, is_whole=True)
            gateway._tell("created")
            gateway._tell("module_list_changed")
            if start:
                gateway.start()
        except BaseException:
            gateway.close()
            raise
        if watch:
            gateway._watch = FileWatch(path, gateway._file_changed, seen)
        return gateway

    # --- its life ---

    @property
    def node(self) -> Node:
        """The node that the modules live on."""
        return self.broker.node

    @property
    def url(self) -> str:
        """The name of the gateway, unique in the world."""
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
        return self._over.wait(limit(timeout))

    def settle(self, timeout: float = 10.0) -> bool:
        """Wait until nothing waits and nothing is being received; False when time is over.

        Raises:
            WouldBlock: called on the thread of a running event loop.
            WouldDeadlock: called in a handler: that message is being received.
        """
        _refuse_in_handler("settle()")
        refuse_on_loop("settle()", "asettle()")
        timeout = seconds(timeout)
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
        await on_a_thread(self.start, leave_out=leave_out)

    async def asettle(self, timeout: float = 10.0) -> bool:
        """Awaitable twin of `settle`."""
        return await on_a_thread(self.settle, timeout)

    def close(self) -> None:
        """Remove all modules, each after its waiting messages, and end. Idempotent.

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

    # --- modules ---

    def modules(self) -> tuple[ModuleStatus, ...]:
        """Return the state and the counters of all modules."""
        found = []
        for handle in self._all():
            sources = tuple(map(_name, self.broker.sources_of(handle)))
            about = handle.waiting, handle.counters, handle.is_started, handle.outage
            found.append(ModuleStatus(handle.name, sources, *about))
        return tuple(found)

    def links(self) -> tuple[LinkNames, ...]:
        """Return all links, as pairs of source and sink."""
        return tuple((_name(source), sink.name) for source, sink in self.broker.links())

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
        found = _loaded(module)
        with self._lock:
            self._check_name(name)
        options = replace(options or ModuleOptions(), hold=True)
        handle = self.broker.add(
            found.factory, args, name=name, options=options, where=found.where
        )
        try:
            with self._lock:
                self._check_name(name)
                self._handles[name] = handle
        except errors.GatewayError:
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
            if self._dead_letters == name:
                self._dead_letters = None
        if handle is None:
            return False
        self.broker.remove(handle, timeout)
        self._tell("module_list_changed")
        return True

    async def aremove_module(self, name: str, timeout: float = REMOVE_TIMEOUT) -> bool:
        """Awaitable twin of `remove_module`."""
        return await on_a_thread(self.remove_module, name, timeout)

    # --- links and messages ---

    def link(self, source: str, sink: str) -> None:
        """Let a sink receive what a source publishes; `"*"` is every other module.

        Raises:
            DuplicateLink: they are linked already.
            InvalidLink: the sink is `*`.
            UnknownModule: an end is not a module of this gateway.
        """
        with self._lock:
            ends = self._ends(source, sink)
            if (source, sink) in self.links():
                msg = f"{source!r} and {sink!r} are linked already"
                raise errors.DuplicateLink(msg)
            self.broker.link(*ends)

    def unlink(self, source: str, sink: str) -> bool:
        """Undo `link`; False when there is no such link.

        Raises:
            InvalidLink: the sink is `*`.
            UnknownModule: an end is not a module of this gateway.
        """
        with self._lock:
            return self.broker.unlink(*self._ends(source, sink))

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

    # --- changes ---

    def update(self, configuration: Mapping[str, Any] | Path | str) -> None:
        """Add modules, links or both; if anything fails, all is as it was.

        Args:
            configuration: of the form of a file, or the path of one.

        Raises:
            ConfigurationError: it cannot be used, or names a module that is there already.
            ModuleFailed: a module could not be created.
        """
        self._change(configuration, is_whole=False)

    def reload(self, configuration: Mapping[str, Any] | Path | str) -> None:
        """Make the gateway what a configuration says; if anything fails, all is as it was.

        Modules whose entries are the same run on. Those that came from a configuration and are
        not in this one are removed; those that were added otherwise stay, with their links.

        Raises:
            ConfigurationError: it cannot be used.
            ModuleFailed: a module could not be created.
        """
        self._change(configuration, is_whole=True)

    def _change(self, given: Mapping[str, Any] | Path | str, *, is_whole: bool) -> None:
        """Take over a configuration; `is_whole` replaces the one before."""
        source, folder, values = "configuration", Path.cwd(), given
        if not isinstance(given, Mapping):
            source, folder = str(given), Path(given).parent
            values = configuration.read_file(given)
        with self._updating:
            known = self._all()
            if is_whole:
                known = [handle for handle in known if handle.name not in self._specs]
            names = frozenset(handle.name for handle in known)
            assert isinstance(values, Mapping)
            links = () if is_whole else self.links()
            found = configuration.read_configuration(
                values, source=source, folder=folder, known=names, links=links
            )
            if self._apply(found, is_whole=is_whole):
                self._tell("module_list_changed")

    def _apply(self, found: Configuration, *, is_whole: bool) -> bool:
        """Create what is new, then change over at once, then remove what is old.

        Only one thread at a time does this: see `_updating`.
        """
        wanted = [s for s in found.modules.values() if self._specs.get(s.name) != s]
        made: dict[str, ModuleHandle] = {}
        try:
            for spec in wanted:
                make, where = spec.loaded.factory, spec.loaded.where
                made[spec.name] = self.broker.add(
                    make, spec.args, name=spec.name, options=spec.options, where=where
                )
        except BaseException:
            for handle in reversed(made.values()):
                self.broker.remove(handle)
            raise
        leaving = self._change_over(found, made, is_whole=is_whole)
        for handle in reversed(leaving):
            self.broker.remove(handle)
        if self._is_started:
            for handle in made.values():
                self._start(handle)
        return bool(made or leaving)

    def _change_over(
        self, found: Configuration, made: dict[str, ModuleHandle], *, is_whole: bool
    ) -> list[ModuleHandle]:
        """Swap the old modules and links for the new ones; return the modules that leave."""
        with self._lock:
            gone = set(self._specs) - set(found.modules) if is_whole else set()
            old = {*gone, *(made.keys() & self._handles.keys())}
            leaving = [self._handles[name] for name in self._handles if name in old]
            kept = [
                link
                for link in self.links()
                if not is_whole or not set(link) & self._specs.keys()
            ]
            self._handles = {n: h for n, h in self._handles.items() if n not in old} | made
            if is_whole:
                self._specs = dict(found.modules)
                self._dead_letters = found.dead_letters
            else:
                self._specs.update(found.modules)
                self._dead_letters = found.dead_letters or self._dead_letters
            ends = [
                (None if source == ANY else self._handles[source], self._handles[sink])
                for source, sink in dict.fromkeys((*kept, *found.links))
                if sink in self._handles and (source == ANY or source in self._handles)
            ]
            self.broker.rewire(ends, leaving)
            return leaving

    def _file_changed(self, path: Path) -> None:
        """Take over a file that has changed; mistakes in it change nothing."""
        try:
            self.reload(path)
        except errors.GatewayError as error:
            _log.error("%s was not taken over: %s", path, error)  # not a bug
            self._events.emit(GatewayEvent("update_failed", self.modules(), detail=str(error)))

    # --- events ---

    def on(self, kind: EventKind, callback: Callable[..., object], *args: Any) -> None:
        """Call `callback(event, *args)` on one separate thread, in order, for a kind of events.

        `created`, `started`, `module_list_changed`, `module_failed`, `update_failed`,
        `outage`, `recovered`, `dead_letter`, `destroyed`.

        Raises:
            TypeError: it cannot be called.
            ValueError: there is no such kind.
        """
        self._events.on(kind, callback, *args)

    def off(self, kind: EventKind, callback: Callable[..., object]) -> None:
        """Call it no more."""
        self._events.off(kind, callback)

    def _dead_letter(self, letter: DeadLetter) -> None:
        """Report a message that is lost to callbacks and to the module for them."""
        if self._events.wants("dead_letter"):
            event = GatewayEvent("dead_letter", (), letter.module, letter.detail, letter)
            self._events.emit(event)
        target = self._handles.get(self._dead_letters or "")
        if target is not None and target.name != letter.module:
            target.inbox.offer(letter.as_frame())

    def _module_ended(self, handle: ModuleHandle, detail: str) -> None:
        """Take a module off the gateway that has ended for good."""
        _log.error("module %r has ended for good: %s", handle.name, detail)
        with self._lock:
            if self._handles.get(handle.name) is handle:
                self._handles.pop(handle.name)
                self._specs.pop(handle.name, None)
        self._tell("module_failed", handle.name, detail)
        self._tell("module_list_changed")

    # --- inside ---

    def _start(self, handle: ModuleHandle) -> None:
        """Start a module; an error is logged and told."""
        try:
            self.broker.start(handle)
        except (errors.ModuleFailed, errors.UnknownModule, TimeoutError) as error:
            _log.error("%s", error)  # the host has logged the traceback
            self._tell("module_failed", handle.name, str(error))

    def _all(self) -> list[ModuleHandle]:
        """Return the handles of all modules."""
        with self._lock:
            return list(self._handles.values())

    def _handle(self, name: str) -> ModuleHandle:
        """Return the handle of a module."""
        if (handle := self._handles.get(name)) is None:
            known = ", ".join(map(repr, self._handles)) or "none"
            msg = f"there is no module {name!r}; there are {known}"
            raise errors.UnknownModule(msg)
        return handle

    def _ends(self, source: str, sink: str) -> tuple[ModuleHandle | str, ModuleHandle]:
        """Return the two ends of a link by their names."""
        if sink == ANY:
            msg = f"{source!r} -> '*': only a source can be all modules"
            raise errors.InvalidLink(msg)
        return ANY if source == ANY else self._handle(source), self._handle(sink)

    def _check_name(self, name: Any) -> None:
        """Raise when a name cannot be that of another module."""
        if not isinstance(name, str) or not name or name == ANY:
            msg = f"{name!r} is no name of a module: any text but '' and '*' is"
            raise errors.InvalidLink(msg)
        if name in self._handles:
            msg = f"there is a module {name!r} already"
            raise errors.DuplicateModule(msg)

    def _tell(self, kind: EventKind, module: str = "", detail: str = "") -> None:
        """Tell of an event, with a snapshot of all modules."""
        if self._events.wants(kind):
            self._events.emit(GatewayEvent(kind, self.modules(), module, detail))


def _name(source: ModuleHandle | None) -> str:
    """Return what names the source of a link."""
    return ANY if source is None else source.name


def _refuse_in_handler(call: str) -> None:
    """Raise when a handler would wait for itself."""
    if current_cell.get() is not None:
        msg = f"{call} in a handler would wait for that handler; call it outside of modules"
        raise WouldDeadlock(msg)


def _loaded(module: Any) -> Loaded:
    """Return what makes the module that a user names or gives."""
    if isinstance(module, str):
        return Loaded(configuration.find_module(module))
    if isinstance(module, Mapping):
        loaders = configuration.built_in_loaders()
        name = str(module.get("name", "python"))
        if name not in loaders:
            msg = f"there is no loader {name!r}; there are {', '.join(loaders)}"
            raise errors.UnknownModule(msg)
        return configuration.load(loaders[name], module.get("entrypoint", {}), Path.cwd())
    return Loaded(module)
