"""Configurations of gateways: tables, loaders, every mistake at once.

JSON or TOML with the keys of the Azure IoT gateway. Before anything is started all of it is
checked, and every module's class is found. Loaders lead from an entry to what makes a module:

| type | entrypoint | |
|---|---|---|
| `python` | `{"module.path": "package.file:Class"}`, or a ready-made module's name | default |
| `outprocess` | see `outprocess` | a module in a process of its own |
| `remote` | `{"address": "basp://HOST:PORT", "module.name": "…"}` | on a node that offers it |

The types `native`, `java`, `node`, `dotnet` and `dotnetcore` of the Azure IoT gateway load code
of other languages into the process; they are known, and refused.
"""

import importlib
import logging
import re
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import Field, ValidationError

from callboard.configuration import reading
from callboard.gateway.broker import ANY
from callboard.gateway.errors import ConfigurationError, InvalidEntrypoint, invalid_entry
from callboard.gateway.handle import ModuleOptions, Where
from callboard.gateway.inbox import DEFAULT_QUEUE
from callboard.gateway.module import Module
from callboard.gateway.modules import READY_MADE
from callboard.gateway.outprocess import OutProcess, ProcessEntrypoint
from callboard.gateway.remote import read_place
from callboard.kernel.queue import Mailbox
from callboard.support.text import describe, logged

#: What may wait on disk before a module that has a store, unless its queue says otherwise.
STORED: Final = Mailbox(limit=100_000, bytes=256 << 20)

LOADER_TYPES: Final = ("python", "outprocess", "remote")

#: Types of the original that load code which is not Python.
FOREIGN: Final = ("native", "java", "node", "dotnet", "dotnetcore")

MODULE_PATH: Final = "module.path"


class Loader(reading.StrictTable):
    """`loaders`: a loader under a name of its own, which is what modules call it.

    Attributes:
        type: one of `LOADER_TYPES`.
        configuration: for `python` the folder `path` from which modules are imported.
    """

    type: str
    name: str = Field(min_length=1)
    configuration: dict[str, Any] = {}


@dataclass(frozen=True, slots=True)
class Loaded:
    """What makes a module, and where it lives."""

    factory: Callable[[], Module]
    where: Where = None


def built_in_loaders() -> dict[str, Loader]:
    """Return the loaders that are there without a configuration."""
    return {kind: Loader(type=kind, name=kind) for kind in LOADER_TYPES}


def refusal_of(kind: str) -> str:
    """Return why a type of loader cannot be used."""
    if kind in FOREIGN:
        return (
            f"loader type {kind!r} loads code of another language into the process; run such a "
            "module in a process of its own, with the loader 'outprocess'"
        )
    return f"there is no loader type {kind!r}; choose one of {', '.join(LOADER_TYPES)}"


def load(loader: Loader, entrypoint: Mapping[str, Any], folder: Path) -> Loaded:
    """Find what an entrypoint names.

    Args:
        loader: which one loads it.
        entrypoint: as in the configuration.
        folder: where the configuration is: Python modules beside it can be imported.

    Raises:
        InvalidEntrypoint: it names nothing that can be loaded.
    """
    match loader.type:
        case "python":
            return Loaded(_python(loader, entrypoint, folder))
        case "outprocess":
            process = ProcessEntrypoint.read(entrypoint)
            return Loaded(partial(OutProcess, process, folder), where="thread")
        case "remote":
            return Loaded(Module, where=read_place(entrypoint))
    raise InvalidEntrypoint(refusal_of(loader.type))


def _python(
    loader: Loader, entrypoint: Mapping[str, Any], folder: Path
) -> Callable[[], Module]:
    """Find the class of an entrypoint of Python."""
    unknown = sorted(set(entrypoint) - {MODULE_PATH})
    if unknown:
        invalid_entry(f"there is no such key here; there is {MODULE_PATH}", unknown[0])
    text = entrypoint.get(MODULE_PATH)
    if not isinstance(text, str) or not text:
        what = "it has to be there: package.file:Class, or the name of a ready-made module"
        invalid_entry(what, MODULE_PATH)
    extra = loader.configuration.get("path")
    for place in (folder, *((folder / str(extra),) if extra else ())):
        if str(place.resolve()) not in sys.path:
            sys.path.insert(0, str(place.resolve()))
    return find_module(text)


def find_module(text: str) -> Callable[[], Module]:
    """Return the module class `package.file:Class`, or a ready-made one by its name.

    Raises:
        InvalidEntrypoint: there is none.
    """
    path, colon, name = READY_MADE.get(text, text).rpartition(":")
    if not colon:
        ready = ", ".join(READY_MADE)
        msg = f"{text!r} names no module; write package.file:Class, or one of {ready}"
        raise InvalidEntrypoint(msg, MODULE_PATH)
    try:
        found: Any = importlib.import_module(path)
    except (Exception, SystemExit) as error:
        msg = f"{path} cannot be imported: {describe(error)}"
        raise InvalidEntrypoint(msg, MODULE_PATH) from error
    for part in name.split("."):
        found = getattr(found, part, None)
    if not (isinstance(found, type) and issubclass(found, Module)):
        msg = f"there is no module class {name} in {path}; derive one from callboard's Module"
        raise InvalidEntrypoint(msg, MODULE_PATH)
    return found


_log = logging.getLogger("callboard.gateway")

#: Seconds between looks at a file that is watched.
WATCH_INTERVAL: Final = 0.5


class LoaderOfModule(reading.StrictTable):
    """`modules.loader`: which loader, and what it loads."""

    name: str = "python"
    entrypoint: dict[str, Any] = {}


class QueueEntry(reading.StrictTable):
    """`modules.queue`: the bounds before a module."""

    limit: int | None = Field(default=None, ge=1)
    bytes: int | None = Field(default=None, ge=1)
    on_full: Literal["wait", "drop_newest", "drop_oldest", "fail"] = "wait"

    def bounds(self, usual: Mailbox) -> Mailbox:
        """Return what the broker takes; the usual bounds where the entry has none."""
        given = self if self.limit or self.bytes else usual
        return Mailbox(given.limit, given.bytes, self.on_full)


class ModuleEntry(reading.StrictTable):
    """`modules`: one module."""

    name: str = Field(min_length=1)
    loader: LoaderOfModule | None = None
    module: str | None = None
    args: dict[str, Any] | None = None
    queue: QueueEntry = QueueEntry()
    restart: Literal["permanent", "transient", "temporary"] = "permanent"
    on_error: Literal["continue", "crash"] = "continue"
    detached: bool = False
    store: str | None = Field(default=None, min_length=1)


class LinkEntry(reading.StrictTable):
    """`links`: one link."""

    source: str
    sink: str


class _Whole(reading.StrictTable):
    loaders: list[Loader] = []
    modules: list[ModuleEntry] = []
    links: list[LinkEntry] = []
    dead_letters: str | None = None


@dataclass(frozen=True, slots=True)
class ModuleSpec:
    """A module of a configuration, ready to be made; two are equal if their entries are."""

    name: str
    args: Mapping[str, Any]
    options: ModuleOptions
    loader: Loader
    entrypoint: Mapping[str, Any]
    loaded: Loaded = field(compare=False)


@dataclass(frozen=True, slots=True)
class Configuration:
    """A configuration that was checked.

    Attributes:
        modules: by name, in their order.
        links: pairs of source and sink, in their order.
        dead_letters: the module that receives dead letters.
    """

    modules: Mapping[str, ModuleSpec]
    links: tuple[tuple[str, str], ...] = ()
    dead_letters: str | None = None


def read_file(path: Path | str) -> dict[str, Any]:
    """Read a file of JSON, or of TOML if its name ends so.

    Raises:
        ConfigurationError: it cannot be read, or is neither.
    """
    return reading.read_values(Path(path), ConfigurationError, takes_json=True)


def read_configuration(
    values: Mapping[str, Any],
    *,
    source: str = "configuration",
    folder: Path | None = None,
    known: frozenset[str] = frozenset(),
    links: tuple[tuple[str, str], ...] = (),
) -> Configuration:
    """Check a configuration and find what it names.

    Args:
        values: of the file.
        source: what errors call it: the file's path.
        folder: where paths in it begin; the working directory by default.
        known: names of modules that are there already: links may lead to them.
        links: those that are there already: none may come again.

    Raises:
        ConfigurationError: with all mistakes.
    """
    check = _Check(folder or Path.cwd(), known, links, reading.names_in(values, "modules"))
    made: list[Configuration] = []

    def look(whole: _Whole) -> list[tuple[str, str]]:
        made.append(check.configuration(whole))
        return check.found

    reading.check_whole(_Whole, values, ConfigurationError, look, source=source)
    return made[0]


def read_configuration_file(path: Path) -> Configuration:
    """Read a file, check what it says, and find what it names.

    Raises:
        ConfigurationError: with all mistakes, and where they stand in a file of TOML.
    """
    values = read_file(path)
    check = partial(read_configuration, values, source=str(path), folder=path.parent)
    return reading.numbered(path, ConfigurationError, check)


@dataclass(slots=True)
class _Check:
    """Looks for what the types do not say; notes every mistake."""

    folder: Path
    known: frozenset[str]
    known_links: tuple[tuple[str, str], ...]
    #: The names of all modules, also of those with mistakes.
    named: list[str]
    found: list[tuple[str, str]] = field(default_factory=list)

    def note(self, path: str, value: object, text: str) -> None:
        """Note a mistake."""
        self.found.append((path, f" = {reading.show(value)}: {text}"))

    def note_unknown(self, path: str, value: object, names: set[str]) -> None:
        """Note that there is no module of a name."""
        there = f"there are {', '.join(sorted(names))}"
        for close in get_close_matches(str(value), names, 1):
            there = f"did you mean {close!r}?"
        self.note(path, value, f"there is no module of that name; {there}")

    def configuration(self, whole: _Whole) -> Configuration:
        """Check the whole."""
        loaders = self.loaders(whole.loaders)
        modules: dict[str, ModuleSpec] = {}
        stores: set[Path] = set()
        names = set(self.known)
        for index, entry in enumerate(whole.modules):
            where = f"modules.{index}"
            if entry.name == ANY:
                self.note(f"{where}.name", entry.name, "it stands for all modules in links")
            elif entry.name in names:
                self.note(f"{where}.name", entry.name, "another module has that name")
            names.add(entry.name)
            if entry.store is not None:
                self.store(where, entry, stores)
            if (spec := self.module(where, entry, loaders)) is not None:
                modules.setdefault(entry.name, spec)
        names.update(self.named)
        self.links(whole.links, names)
        dead = whole.dead_letters
        if dead is not None and dead not in names:
            self.note_unknown("dead_letters", dead, names)
        links = tuple((entry.source, entry.sink) for entry in whole.links)
        return Configuration(modules, links, dead)

    def store(self, where: str, entry: ModuleEntry, stores: set[Path]) -> None:
        """Check the folder that messages for a module wait in."""
        folder = (self.folder / (entry.store or "")).resolve()
        if folder in stores:
            self.note(f"{where}.store", entry.store, "another module has it; give each its own")
        if entry.loader is not None and entry.loader.name == "remote":
            self.note(f"{where}.store", entry.store, "a module on another node has none here")
        stores.add(folder)

    def loaders(self, entries: list[Loader]) -> dict[str, Loader]:
        """Check the loaders; return them with the built-in ones."""
        loaders = built_in_loaders()
        seen: set[str] = set()
        for index, entry in enumerate(entries):
            if entry.name in seen:
                self.note(f"loaders.{index}.name", entry.name, "another loader has that name")
            if entry.type not in LOADER_TYPES:
                self.note(f"loaders.{index}.type", entry.type, refusal_of(entry.type))
            seen.add(entry.name)
            loaders[entry.name] = entry
        return loaders

    def module(
        self, where: str, entry: ModuleEntry, loaders: dict[str, Loader]
    ) -> ModuleSpec | None:
        """Check a module and find its class; None after a mistake."""
        chosen = entry.loader
        if (entry.module is None) == (chosen is None):
            text = "give either module = 'package.file:Class' or a loader with an entrypoint"
            self.note(where, entry.name, text)
            return None
        if chosen is None:
            chosen = LoaderOfModule(entrypoint={MODULE_PATH: entry.module})
            place = f"{where}.module"
        else:
            place = f"{where}.loader.entrypoint"
        if (loader := loaders.get(chosen.name)) is None:
            self.note(f"{where}.loader.name", chosen.name, refusal_of(chosen.name))
            return None
        try:
            loaded = load(loader, chosen.entrypoint, self.folder)
        except InvalidEntrypoint as error:
            key = f"{place}.{error.key}" if error.key and entry.module is None else place
            value = entry.module or chosen.entrypoint.get(error.key, chosen.entrypoint)
            self.note(key, value, str(error))
            return None
        args = entry.args or {}
        model: Any = getattr(loaded.factory, "Arguments", None)
        if model is not None:
            try:
                model.model_validate(args)
            except ValidationError as error:
                of = f"; of module {entry.name!r}"
                for line in reading.explain(error, model, "", at=f"{where}.args"):
                    path, said = re.findall(r": ([^ :]+)(.*)", line, re.DOTALL)[0]
                    self.found.append((path, f"{said}{of}"))
        options = ModuleOptions(
            queue=entry.queue.bounds(DEFAULT_QUEUE if entry.store is None else STORED),
            restart=entry.restart,
            on_error=entry.on_error,
            detached=entry.detached,
            hold=True,
            store=None if entry.store is None else self.folder / entry.store,
        )
        return ModuleSpec(entry.name, args, options, loader, chosen.entrypoint, loaded)

    def links(self, entries: list[LinkEntry], names: set[str]) -> None:
        """Check that links join modules, each pair once."""
        seen = set(self.known_links)
        for index, entry in enumerate(entries):
            where = f"links.{index}"
            if entry.source != ANY and entry.source not in names:
                self.note_unknown(f"{where}.source", entry.source, names)
            if entry.sink == ANY:
                self.note(f"{where}.sink", entry.sink, "only a source can be all modules")
            elif entry.sink not in names:
                self.note_unknown(f"{where}.sink", entry.sink, names)
            link = (entry.source, entry.sink)
            if link in seen:
                self.note(where, " -> ".join(link), "this link is there already")
            seen.add(link)


#: What changes when a file is written or replaced; None while there is none.
Mark = tuple[int, int, int] | None


class FileWatch:
    """Calls `changed(path)` on a thread of its own when a file was written or replaced."""

    def __init__(self, path: Path, changed: Callable[[Path], None], seen: Mark) -> None:
        """Watch a file.

        Args:
            path: of the file.
            changed: called with the path.
            seen: what `mark_of` said before the file was read; a change since then is told.
        """
        self._path = path
        self._changed = changed
        self._over = threading.Event()
        self._seen = seen
        self._thread = threading.Thread(
            target=self._run, name=f"callboard-watch-{path.name}", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Watch no more; in `changed` it does not wait for itself."""
        self._over.set()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        """Look at the file again and again."""
        while not self._over.wait(WATCH_INTERVAL):
            found = mark_of(self._path)
            if found is None or found == self._seen:
                continue  # a file that is gone is about to be replaced
            self._seen = found
            try:
                self._changed(self._path)
            except BaseException as error:  # noqa: BLE001  # the watch goes on
                logged(_log, "%s changed, and that failed", self._path, error=error)


def mark_of(path: Path) -> Mark:
    """Return what changes when a file is written or replaced; None when it is not there."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
