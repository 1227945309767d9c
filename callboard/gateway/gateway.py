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
from pathlib import Path
from typing import Any, Final, Self

from actors.actor import Actor
from actors.errors import CallboardError
from actors.reference import ActorRef
from callboard.gateway.broker import REMOVE_TIMEOUT, ModuleBroker
from callboard.gateway.configuration import (
    Configuration,
    ModuleSpec,
    read_configuration,
    read_file,
)
from callboard.gateway.dead_letters import as_frame
from callboard.gateway.errors import (
    ConfigurationError,
    DuplicateLink,
    DuplicateModule,
    GatewayError,
    InvalidLink,
    ModuleFailed,
    UnknownModule,
)
from callboard.gateway.events import EventDispatcher, EventKind, GatewayEvent, ModuleStatus
from callboard.gateway.handle import DeadLetter, ModuleHandle, ModuleOptions
from callboard.gateway.host import ModuleHost, Settle
from callboard.gateway.links import ANY
from callboard.gateway.loaders import Loaded, built_in_loaders, find_module, is_blocking, load
from callboard.gateway.message import Message
from callboard.gateway.watch import FileWatch
from proxies.node import Node

__all__ = ["Gateway"]

log = logging.getLogger("callboard.gateway")

Link = tuple[str, str]

SETTLE_INTERVAL: Final = 0.01
"""Seconds between looks whether all messages were received."""


class Gateway:
    """Modules that are linked by name."""

    def __init__(self, node: Node | None = None, *, name: str = "gateway") -> None:
        """Make a gateway without modules.

        Args:
            node: where its modules live; one of its own by default, closed with it.
            name: for people.
        """
        self.broker = ModuleBroker(node, name)
        self.broker.on_dead_letter = self._dead_letter
        self.broker.on_ended = self._module_ended
        self._events = EventDispatcher(name)
        self._lock = threading.RLock()
        self._updating = threading.RLock()
        self._handles: dict[str, ModuleHandle] = {}
        #: The modules that came from a configuration.
        self._specs: dict[str, ModuleSpec] = {}
        #: As an ordered set.
        self._links: dict[Link, None] = {}
        self._dead_letters: str | None = None
        self._is_started = False
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
            gateway._watch = FileWatch(path, gateway._file_changed)
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
        skipped = set(leave_out)
        with self._lock:
            self._is_started = True
            handles = [h for h in self._handles.values() if not h.is_started]
        for handle in handles:
            if handle.name not in skipped:
                self._start(handle)
        self._tell("started")

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the gateway is closed; False when `timeout` seconds are over before."""
        return self._over.wait(timeout)

    def settle(self, timeout: float = 10.0) -> bool:
        """Wait until nothing waits and nothing is being received; False when time is over."""
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

    def close(self) -> None:
        """Remove all modules, each after it received what waits for it, and end. Idempotent."""
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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

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
            options: how it is run.
            start: False leaves it to `start_module`, after its links are there.

        Raises:
            DuplicateModule: there is one of that name.
            InvalidEntrypoint: the text or entrypoint names no module.
            ModuleFailed: it could not be created.
        """
        loaded = _loaded(module)
        with self._lock:
            self._check_name(name)
        if options is None:
            options = ModuleOptions(hold=True, detached=is_blocking(loaded.factory))
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
        """
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

    # --- configurations ---

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
        source, folder = "configuration", Path.cwd()
        values = given
        if not isinstance(given, Mapping):
            source, folder, values = str(given), Path(given).parent, read_file(given)
        with self._updating:
            known = self._all()
            if is_whole:
                known = [handle for handle in known if handle.name not in self._specs]
            names = frozenset(handle.name for handle in known)
            assert isinstance(values, Mapping)
            found = read_configuration(values, source=source, folder=folder, known=names)
            self._check_links(found, source, is_whole=is_whole)
            if self._apply(found, is_whole=is_whole):
                self._tell("module_list_changed")

    def _check_links(self, found: Configuration, source: str, *, is_whole: bool) -> None:
        there = {} if is_whole else self._links
        lines = [
            f"{source}: links.{index} = {' -> '.join(link)!r}: this link is there already"
            for index, link in enumerate(found.links)
            if link in there
        ]
        if lines:
            raise ConfigurationError(lines)

    def _apply(self, found: Configuration, *, is_whole: bool) -> bool:
        """Create what is new, then change over at once, then remove what is old."""
        with self._updating:
            wanted = [s for s in found.modules.values() if self._specs.get(s.name) != s]
            made: dict[str, ModuleHandle] = {}
            try:
                for spec in wanted:
                    made[spec.name] = self._create(
                        spec.name, spec.loaded, spec.args, spec.options
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
        """Put the new modules and links in the place of the old ones; returns who leaves."""
        with self._lock:
            gone = set(self._specs) - set(found.modules) if is_whole else set()
            old = {*gone, *(made.keys() & self._handles.keys())}
            leaving = [self._handles[name] for name in self._handles if name in old]
            kept = {
                link: None
                for link in self._links
                if not is_whole or not set(link) & self._specs.keys()
            }
            self._handles = {n: h for n, h in self._handles.items() if n not in old} | made
            self._links = kept | dict.fromkeys(found.links)
            if is_whole:
                self._specs = dict(found.modules)
                self._dead_letters = found.dead_letters
            else:
                self._specs.update(found.modules)
                self._dead_letters = found.dead_letters or self._dead_letters
            self._links = {
                (source, sink): None
                for source, sink in self._links
                if sink in self._handles and (source == ANY or source in self._handles)
            }
            self.broker.rewire([self._ends_of(*link) for link in self._links], leaving)
            return leaving

    def _file_changed(self, path: Path) -> None:
        try:
            self.reload(path)
        except GatewayError as error:
            log.error("%s was not taken over: %s", path, error)  # noqa: TRY400  # no bug of ours
            self._events.emit(GatewayEvent("update_failed", self.modules(), detail=str(error)))

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

    def _tell(self, kind: EventKind, module: str = "", detail: str = "") -> None:
        if self._events.wants(kind):
            self._events.emit(GatewayEvent(kind, self.modules(), module, detail))

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
