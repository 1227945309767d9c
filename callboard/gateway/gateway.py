"""A gateway: named modules and their links, configurations, events.

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
from callboard.arguments import limit, require, seconds
from callboard.closing import Closing, twin
from callboard.gateway import configuration, errors
from callboard.gateway.broker import ANY, REMOVE_TIMEOUT, ModuleBroker, refuse_on_loop
from callboard.gateway.configuration import Configuration, FileWatch, Loaded, ModuleSpec
from callboard.gateway.events import EventDispatcher, EventKind, GatewayEvent, ModuleStatus
from callboard.gateway.handle import DeadLetter, ModuleHandle, ModuleOptions
from callboard.gateway.host import Settle
from callboard.gateway.wire.message import Message
from callboard.kernel.actors import ActorRef
from callboard.kernel.context import current_cell
from callboard.kernel.errors import CallboardError, WouldDeadlock
from callboard.node import Node

_log = logging.getLogger("callboard.gateway")

#: Seconds between two checks whether all messages were received.
SETTLE_INTERVAL: Final = 0.01

LinkNames = tuple[str, str]


class Gateway(Closing):
    """A set of modules that are linked by name."""

    def __init__(self, node: Node | None = None, *, name: str = "gateway") -> None:
        """Make a gateway without modules.

        Args:
            node: the node on which its modules run; by default the gateway makes a node and
                closes it.
            name: a name for logs and people.
        """
        require(isinstance(node, Node | None), "Gateway(node) takes a Node", node)
        require(isinstance(name, str), "the name of a gateway must be a text", name)
        self.broker = ModuleBroker(node, name)
        self.broker.on_dead_letter = self._dead_letter
        self.broker.on_ended = self._module_ended
        self.broker.on_outage = lambda name, reason: self._report(
            "outage" if reason else "recovered", name, reason
        )
        self._events = EventDispatcher(name)
        self._lock = locks.lock("modules of a gateway", 210, reentrant=True)
        #: Held while a configuration is applied.
        self._updating = locks.lock("update of a gateway", 200, reentrant=True, runs_users=True)
        self._handles: dict[str, ModuleHandle] = {}
        #: The modules of the last configuration.
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
        """Make a gateway from a JSON or TOML file, and start it.

        Args:
            path: the path of the file; Python modules next to it can be imported.
            node: the node on which its modules run; by default the gateway makes one.
            start: whether to call `start`. Without it, callbacks can be registered first.
            watch: whether to reload the file when it changes; a file with mistakes is ignored.

        Raises:
            ConfigurationError: the file cannot be used; nothing was made.
            ModuleFailed: a module could not be created; all others were destroyed again.
        """
        require(isinstance(path, str | Path), "pass the path of a JSON or TOML file", path)
        path = Path(path)
        mark = configuration.mark_of(path)
        config = configuration.read_configuration_file(path)
        gateway = cls(node, name=path.stem)
        try:
            gateway._apply(config, is_whole=True)
            gateway._report("created")
            gateway._report("module_list_changed")
            if start:
                gateway.start()
        except BaseException:
            gateway.close()
            raise
        if watch:
            gateway._watch = FileWatch(path, gateway._file_changed, mark)
        return gateway

    # --- start, wait and close ---

    @property
    def node(self) -> Node:
        """The node of the modules."""
        return self.broker.node

    @property
    def url(self) -> str:
        """The globally unique name of the gateway."""
        return self.broker.url

    def start(self, *, leave_out: Iterable[str] = ()) -> None:
        """Start all modules in their order; from then on they receive messages.

        If the `start` of a module raises, the error is logged and reported as `module_failed`;
        its restart policy decides what happens next.

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
        self._report("started")

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the gateway is closed; return False after `timeout` seconds.

        Raises:
            WouldDeadlock: called in a handler, for which the close would have to wait.
        """
        _refuse_in_handler("wait()")
        return self._over.wait(limit(timeout))

    def settle(self, timeout: float = 10.0) -> bool:
        """Wait until all messages were received; return False after `timeout` seconds.

        Raises:
            WouldBlock: called on the thread of a running event loop.
            WouldDeadlock: called in a handler: its message is being received.
        """
        _refuse_in_handler("settle()")
        refuse_on_loop("settle()", "asettle()")
        timeout = seconds(timeout)
        deadline, previous = time.monotonic() + timeout, -1
        while time.monotonic() < deadline:
            handles = [h for h in self._all() if h.is_started and h.ref is not None]
            answers = [h.ref.ask(Settle(), timeout=timeout) for h in handles if h.ref]
            for answer in answers:
                with contextlib.suppress(CallboardError):
                    answer.result(max(0.0, deadline - time.monotonic()))
            count = sum(h.counters.received + h.counters.failed for h in handles)
            if count == previous and not any(h.waiting for h in handles):
                return True
            previous = count
            self._over.wait(SETTLE_INTERVAL)
        return False

    astart = twin(start)

    asettle = twin(settle)

    def close(self) -> None:
        """Remove all modules, each after its queued messages, and end. Idempotent.

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
        statuses = []
        for handle in self._all():
            sources = tuple(map(_name, self.broker.sources_of(handle)))
            rest = handle.waiting, handle.counters, handle.is_started, handle.outage
            statuses.append(ModuleStatus(handle.name, sources, *rest))
        return tuple(statuses)

    def links(self) -> tuple[LinkNames, ...]:
        """Return all links, as pairs of source and sink."""
        return tuple((_name(source), sink.name) for source, sink in self.broker.links())

    def ref(self, name: str) -> ActorRef:
        """Return the actor of a module, for monitoring; a restart replaces it.

        Raises:
            UnknownModule: there is no module of that name.
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
        """Create a module; start it if the gateway is started.

        Args:
            name: unique in the gateway; any text but `*`.
            module: a module class, a module, `package.file:Class`, the name of a ready-made
                module, or a loader with an entrypoint as in a configuration.
            args: arguments for the module's `create`.
            options: the options of the module; its messages always wait until it is started.
            start: False leaves it to `start_module`, for example until it is linked.

        Raises:
            DuplicateModule: there is a module of that name already.
            InvalidEntrypoint: the text or entrypoint does not name a module.
            ModuleFailed: the module could not be created.
        """
        loaded = _loaded(module)
        with self._lock:
            self._check_name(name)
        options = replace(options or ModuleOptions(), hold=True)
        handle = self.broker.add(
            loaded.factory, args, name=name, options=options, where=loaded.where
        )
        try:
            with self._lock:
                self._check_name(name)
                self._handles[name] = handle
        except errors.GatewayError:
            self.broker.remove(handle)
            raise
        self._report("module_list_changed")
        if start and self._is_started:
            self.start_module(name)

    def start_module(self, name: str) -> None:
        """Start a module that `add_module` did not start.

        Raises:
            UnknownModule: there is no module of that name.
            ModuleFailed: the module's `start` raised.
        """
        self.broker.start(self._handle(name))

    def remove_module(self, name: str, timeout: float = REMOVE_TIMEOUT) -> bool:
        """Remove a module and its links; return False if there is none of that name.

        It first receives its queued messages, for at most `timeout` seconds.

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
        self._report("module_list_changed")
        return True

    aremove_module = twin(remove_module)

    # --- links and messages ---

    def link(self, source: str, sink: str) -> None:
        """Link a sink to a source to receive its messages; `"*"` is every other module.

        Raises:
            DuplicateLink: the sink and the source are linked already.
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
        """Remove a link; return False if there is no such link.

        Raises:
            InvalidLink: the sink is `*`.
            UnknownModule: an end is not a module of this gateway.
        """
        with self._lock:
            return self.broker.unlink(*self._ends(source, sink))

    def publish(
        self, source: str, content: Any, properties: Mapping[str, str] | None = None
    ) -> None:
        """Publish a message on behalf of a module; a thread waits for room.

        Raises:
            UnknownModule: there is no module of that name.
            MailboxFull: a sink refused it.
        """
        message = content if isinstance(content, Message) else Message(content, properties)
        self.broker.publish(self._handle(source), message)

    # --- configurations ---

    def update(self, configuration: Mapping[str, Any] | Path | str) -> None:
        """Add modules, links or both; if anything fails, nothing is changed.

        Args:
            configuration: like the contents of a file, or the path of one.

        Raises:
            ConfigurationError: the configuration cannot be used, or names a module that exists
                already.
            ModuleFailed: a module could not be created.
        """
        self._change(configuration, is_whole=False)

    def reload(self, configuration: Mapping[str, Any] | Path | str) -> None:
        """Replace the configuration; if anything fails, nothing is changed.

        Modules with unchanged entries continue to run. Modules of the old configuration that
        are missing in the new one are removed. Modules added by other calls stay, with their
        links.

        Raises:
            ConfigurationError: the new configuration cannot be used.
            ModuleFailed: a module could not be created.
        """
        self._change(configuration, is_whole=True)

    def _change(self, changes: Mapping[str, Any] | Path | str, *, is_whole: bool) -> None:
        """Apply a configuration; `is_whole` replaces the old one."""
        source, folder, values = "configuration", Path.cwd(), changes
        if not isinstance(changes, Mapping):
            source, folder = str(changes), Path(changes).parent
            values = configuration.read_file(changes)
        with self._updating:
            handles = self._all()
            if is_whole:
                handles = [handle for handle in handles if handle.name not in self._specs]
            names = frozenset(handle.name for handle in handles)
            assert isinstance(values, Mapping)
            links = () if is_whole else self.links()
            config = configuration.read_configuration(
                values, source=source, folder=folder, known=names, links=links
            )
            if self._apply(config, is_whole=is_whole):
                self._report("module_list_changed")

    def _apply(self, config: Configuration, *, is_whole: bool) -> bool:
        """Create the new modules, then switch over at once, then remove the old ones.

        Called by one thread at a time: see `_updating`.
        """
        changed = [s for s in config.modules.values() if self._specs.get(s.name) != s]
        created: dict[str, ModuleHandle] = {}
        try:
            for spec in changed:
                make, where = spec.loaded.factory, spec.loaded.where
                created[spec.name] = self.broker.add(
                    make, spec.args, name=spec.name, options=spec.options, where=where
                )
        except BaseException:
            for handle in reversed(created.values()):
                self.broker.remove(handle)
            raise
        leaving = self._change_over(config, created, is_whole=is_whole)
        for handle in reversed(leaving):
            self.broker.remove(handle)
        if self._is_started:
            for handle in created.values():
                self._start(handle)
        return bool(created or leaving)

    def _change_over(
        self, config: Configuration, created: dict[str, ModuleHandle], *, is_whole: bool
    ) -> list[ModuleHandle]:
        """Replace the old modules and links by the new ones; return the modules that leave."""
        with self._lock:
            removed = set(self._specs) - set(config.modules) if is_whole else set()
            old = {*removed, *(created.keys() & self._handles.keys())}
            leaving = [self._handles[name] for name in self._handles if name in old]
            for handle in leaving:
                if handle.name in created:
                    handle.inbox.successor = created[handle.name].inbox
            kept_links = [
                link
                for link in self.links()
                if not is_whole or not set(link) & self._specs.keys()
            ]
            self._handles = {n: h for n, h in self._handles.items() if n not in old} | created
            if is_whole:
                self._specs = dict(config.modules)
                self._dead_letters = config.dead_letters
            else:
                self._specs.update(config.modules)
                self._dead_letters = config.dead_letters or self._dead_letters
            ends = [
                (None if source == ANY else self._handles[source], self._handles[sink])
                for source, sink in dict.fromkeys((*kept_links, *config.links))
                if sink in self._handles and (source == ANY or source in self._handles)
            ]
            self.broker.rewire(ends, leaving)
            return leaving

    def _file_changed(self, path: Path) -> None:
        """Apply a changed file; ignore it if it has mistakes."""
        try:
            self.reload(path)
        except errors.GatewayError as error:
            _log.error("%s was not applied: %s", path, error)  # not a bug
            self._events.emit(GatewayEvent("update_failed", self.modules(), detail=str(error)))

    # --- events ---

    def on(self, kind: EventKind, callback: Callable[..., object], *args: Any) -> None:
        """Call `callback(event, *args)` for events of a kind, in order, on one separate thread.

        The kinds are `created`, `started`, `module_list_changed`, `module_failed`,
        `update_failed`, `outage`, `recovered`, `dead_letter`, `destroyed`.

        Raises:
            TypeError: the callback is not callable.
            ValueError: there is no such kind.
        """
        self._events.on(kind, callback, *args)

    def off(self, kind: EventKind, callback: Callable[..., object]) -> None:
        """Remove a callback."""
        self._events.off(kind, callback)

    def _dead_letter(self, letter: DeadLetter) -> None:
        """Report a lost message to callbacks, and to the module for dead letters."""
        if self._events.wants("dead_letter"):
            event = GatewayEvent("dead_letter", (), letter.module, letter.detail, letter)
            self._events.emit(event)
        target = self._handles.get(self._dead_letters or "")
        if target is not None and target.name != letter.module:
            target.inbox.offer(letter.as_frame())

    def _module_ended(self, handle: ModuleHandle, detail: str) -> None:
        """Remove a module that has ended for good."""
        _log.error("module %r has ended for good: %s", handle.name, detail)
        with self._lock:
            if self._handles.get(handle.name) is handle:
                self._handles.pop(handle.name)
                self._specs.pop(handle.name, None)
        self._report("module_failed", handle.name, detail)
        self._report("module_list_changed")

    # --- helpers ---

    def _start(self, handle: ModuleHandle) -> None:
        """Start a module; log and report an error."""
        try:
            self.broker.start(handle)
        except (errors.ModuleFailed, errors.UnknownModule, TimeoutError) as error:
            _log.error("%s", error)  # the host has logged the traceback
            self._report("module_failed", handle.name, str(error))

    def _all(self) -> list[ModuleHandle]:
        """Return the handles of all modules."""
        with self._lock:
            return list(self._handles.values())

    def _handle(self, name: str) -> ModuleHandle:
        """Return the handle of a module."""
        if (handle := self._handles.get(name)) is None:
            names = ", ".join(map(repr, self._handles)) or "none"
            msg = f"there is no module {name!r}; there are {names}"
            raise errors.UnknownModule(msg)
        return handle

    def _ends(self, source: str, sink: str) -> tuple[ModuleHandle | str, ModuleHandle]:
        """Return the modules of a link's ends."""
        if sink == ANY:
            msg = f"{source!r} -> '*': only a source can be all modules"
            raise errors.InvalidLink(msg)
        return ANY if source == ANY else self._handle(source), self._handle(sink)

    def _check_name(self, name: Any) -> None:
        """Raise if a name is not valid for another module."""
        if not isinstance(name, str) or not name or name == ANY:
            msg = f"{name!r} is not a valid module name; use any text except '' and '*'"
            raise errors.InvalidLink(msg)
        if name in self._handles:
            msg = f"there is already a module {name!r}"
            raise errors.DuplicateModule(msg)

    def _report(self, kind: EventKind, module: str = "", detail: str = "") -> None:
        """Report an event, with a snapshot of all modules."""
        if self._events.wants(kind):
            self._events.emit(GatewayEvent(kind, self.modules(), module, detail))


def _name(source: ModuleHandle | None) -> str:
    """Return the name for a link's source."""
    return ANY if source is None else source.name


def _refuse_in_handler(call: str) -> None:
    """Raise if a handler would wait for itself."""
    if current_cell.get() is not None:
        msg = f"{call} in a handler would wait for that handler; call it outside of modules"
        raise WouldDeadlock(msg)


def _loaded(module: Any) -> Loaded:
    """Find the factory of a module."""
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
