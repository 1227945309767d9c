"""Configurations of gateways: tables and loaders; all mistakes are reported at once.

A configuration is JSON or TOML with the keys of the Azure IoT gateway. It is checked
completely, and every module's class is found, before anything is started. A loader turns the
entry of a module into its factory:

| type | entrypoint | |
|---|---|---|
| `python` | `{"module.path": "package.file:Class"}`, or a ready-made module's name | default |
| `outprocess` | see `outprocess` | a module in a separate process |
| `remote` | `{"address": "basp://HOST:PORT", "module.name": "…"}` | on a node that offers it |

The types `native`, `java`, `node`, `dotnet` and `dotnetcore` of the Azure IoT gateway load code
of other languages into the process. They are recognized, and refused.
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
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field, ValidationError

from callboard.bounded_queue import MailboxPolicy
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
from callboard.support.files.private_file import check_mode
from callboard.support.text import describe, logged

#: The default bounds of a queue on disk, for a module with a store.
STORED: Final = Mailbox(limit=100_000, bytes=256 << 20)

LOADER_TYPES: Final = ("python", "outprocess", "remote")

#: Types of the Azure IoT gateway that load code of other languages.
FOREIGN: Final = ("native", "java", "node", "dotnet", "dotnetcore")

MODULE_PATH: Final = "module.path"


class Loader(reading.StrictTable):
    """`loaders`: a loader under a name that modules refer to.

    Attributes:
        type: one of `LOADER_TYPES`.
        configuration: the loader's settings; for `python` the folder `path` from which modules
            are imported.
    """

    type: str
    name: str = Field(min_length=1)
    configuration: dict[str, Any] = {}


@dataclass(frozen=True, slots=True)
class Loaded:
    """The factory of a module, and where the module runs."""

    factory: Callable[[], Module]
    where: Where = None


def built_in_loaders() -> dict[str, Loader]:
    """Return the loaders that exist without a configuration."""
    return {kind: Loader(type=kind, name=kind) for kind in LOADER_TYPES}


def refusal_of(kind: str) -> str:
    """Return why a type of loader cannot be used."""
    if kind in FOREIGN:
        return (
            f"loader type {kind!r} loads code of another language into the process; run such a "
            "module in a separate process, with the loader 'outprocess'"
        )
    return f"there is no loader type {kind!r}; choose one of {', '.join(LOADER_TYPES)}"


def load(loader: Loader, entrypoint: Mapping[str, Any], folder: Path) -> Loaded:
    """Find the module of an entrypoint.

    Args:
        loader: loads the module.
        entrypoint: as in the configuration.
        folder: the folder of the configuration; Python modules next to the file can be
            imported.

    Raises:
        InvalidEntrypoint: the module cannot be found or loaded.
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
    """Find the class of a Python entrypoint."""
    unknown = sorted(set(entrypoint) - {MODULE_PATH})
    if unknown:
        invalid_entry(f"there is no such key here; use {MODULE_PATH}", unknown[0])
    text = entrypoint.get(MODULE_PATH)
    if not isinstance(text, str) or not text:
        problem = "it is missing: package.file:Class, or the name of a ready-made module"
        invalid_entry(problem, MODULE_PATH)
    extra = loader.configuration.get("path")
    for place in (folder, *((folder / str(extra),) if extra else ())):
        if str(place.resolve()) not in sys.path:
            sys.path.insert(0, str(place.resolve()))
    return find_module(text)


def find_module(text: str) -> Callable[[], Module]:
    """Return the module class `package.file:Class`, or a ready-made one by its name.

    Raises:
        InvalidEntrypoint: there is no such class.
    """
    path, colon, name = READY_MADE.get(text, text).rpartition(":")
    if not colon:
        ready = ", ".join(READY_MADE)
        msg = f"{text!r} is not a module; write package.file:Class, or one of {ready}"
        raise InvalidEntrypoint(msg, MODULE_PATH)
    try:
        value: Any = importlib.import_module(path)
    except (Exception, SystemExit) as error:
        msg = f"{path} cannot be imported: {describe(error)}"
        raise InvalidEntrypoint(msg, MODULE_PATH) from error
    for part in name.split("."):
        value = getattr(value, part, None)
    if not (isinstance(value, type) and issubclass(value, Module)):
        msg = f"there is no module class {name} in {path}; derive one from callboard's Module"
        raise InvalidEntrypoint(msg, MODULE_PATH)
    return value


_log = logging.getLogger("callboard.gateway")

#: Seconds between two checks of a watched file.
WATCH_INTERVAL: Final = 0.5


class LoaderOfModule(reading.StrictTable):
    """`modules.loader`: the name of a loader, and its entrypoint."""

    name: str = "python"
    entrypoint: dict[str, Any] = {}


class QueueEntry(reading.StrictTable):
    """`modules.queue`: the bounds of a module's queue."""

    limit: int | None = Field(default=None, ge=1)
    bytes: int | None = Field(default=None, ge=1)
    on_full: MailboxPolicy = "wait"

    def bounds(self, usual: Mailbox) -> Mailbox:
        """Return the bounds for the broker; the usual ones if the entry has none."""
        entry = self if self.limit or self.bytes else usual
        return Mailbox(entry.limit, entry.bytes, self.on_full)


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
    store_mode: Annotated[int | None, AfterValidator(check_mode)] = None


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
    """A checked module of a configuration; two are equal if their entries are."""

    name: str
    args: Mapping[str, Any]
    options: ModuleOptions
    loader: Loader
    entrypoint: Mapping[str, Any]
    loaded: Loaded = field(compare=False)


@dataclass(frozen=True, slots=True)
class Configuration:
    """A checked configuration.

    Attributes:
        modules: the modules by name, in their order.
        links: pairs of source and sink, in their order.
        dead_letters: the module that receives dead letters.
    """

    modules: Mapping[str, ModuleSpec]
    links: tuple[tuple[str, str], ...] = ()
    dead_letters: str | None = None


def read_file(path: Path | str) -> dict[str, Any]:
    """Read a JSON file, or a TOML file if its name ends in `.toml`.

    Raises:
        ConfigurationError: the file cannot be read, or is malformed.
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
    """Check a configuration and find its modules.

    Args:
        values: the values in the file.
        source: the name of the file in errors: its path.
        folder: the start of relative paths; by default the working directory.
        known: names of existing modules, which links may refer to.
        links: existing links, which must not be repeated.

    Raises:
        ConfigurationError: the configuration has mistakes; the error lists all of them.
    """
    check = _Check(folder or Path.cwd(), known, links, reading.names_in(values, "modules"))
    result: list[Configuration] = []

    def find_mistakes(whole: _Whole) -> list[tuple[str, str]]:
        result.append(check.configuration(whole))
        return check.mistakes

    reading.check_whole(_Whole, values, ConfigurationError, find_mistakes, source=source)
    return result[0]


def read_configuration_file(path: Path) -> Configuration:
    """Read and check a file, and find its modules.

    Raises:
        ConfigurationError: the configuration has mistakes; the error lists all of them, with
            their lines if it is a TOML file.
    """
    values = read_file(path)
    check = partial(read_configuration, values, source=str(path), folder=path.parent)
    return reading.numbered(path, ConfigurationError, check)


@dataclass(slots=True)
class _Check:
    """Checks beyond the types of values; collects all mistakes."""

    folder: Path
    known: frozenset[str]
    known_links: tuple[tuple[str, str], ...]
    #: The names of all modules, including those with mistakes.
    all_names: list[str]
    mistakes: list[tuple[str, str]] = field(default_factory=list)

    def report(self, path: str, value: object, text: str) -> None:
        """Add a mistake."""
        self.mistakes.append((path, f" = {reading.show(value)}: {text}"))

    def add_unknown(self, path: str, value: object, names: set[str]) -> None:
        """Add the mistake that a name is not the name of a module."""
        advice = f"there are {', '.join(sorted(names))}"
        for close in get_close_matches(str(value), names, 1):
            advice = f"did you mean {close!r}?"
        self.report(path, value, f"there is no module of that name; {advice}")

    def configuration(self, whole: _Whole) -> Configuration:
        """Check a whole configuration."""
        loaders = self.loaders(whole.loaders)
        modules: dict[str, ModuleSpec] = {}
        stores: set[Path] = set()
        names = set(self.known)
        for index, entry in enumerate(whole.modules):
            path = f"modules.{index}"
            if entry.name == ANY:
                self.report(f"{path}.name", entry.name, "in links it stands for all modules")
            elif entry.name in names:
                self.report(f"{path}.name", entry.name, "another module has that name")
            names.add(entry.name)
            if entry.store is not None:
                self.store(path, entry, stores)
            if (spec := self.module(path, entry, loaders)) is not None:
                modules.setdefault(entry.name, spec)
        names.update(self.all_names)
        self.links(whole.links, names)
        dead = whole.dead_letters
        if dead is not None and dead not in names:
            self.add_unknown("dead_letters", dead, names)
        links = tuple((entry.source, entry.sink) for entry in whole.links)
        return Configuration(modules, links, dead)

    def store(self, path: str, entry: ModuleEntry, stores: set[Path]) -> None:
        """Check the folder of a module's queue."""
        folder = (self.folder / (entry.store or "")).resolve()
        if folder in stores:
            self.report(f"{path}.store", entry.store, "another module has it; use another")
        if entry.loader is not None and entry.loader.name == "remote":
            text = "a module on another node cannot have a store here"
            self.report(f"{path}.store", entry.store, text)
        stores.add(folder)

    def loaders(self, entries: list[Loader]) -> dict[str, Loader]:
        """Check the loaders; return them with the built-in ones."""
        loaders = built_in_loaders()
        names: set[str] = set()
        for index, entry in enumerate(entries):
            if entry.name in names:
                self.report(f"loaders.{index}.name", entry.name, "another loader has that name")
            if entry.type not in LOADER_TYPES:
                self.report(f"loaders.{index}.type", entry.type, refusal_of(entry.type))
            names.add(entry.name)
            loaders[entry.name] = entry
        return loaders

    def module(
        self, path: str, entry: ModuleEntry, loaders: dict[str, Loader]
    ) -> ModuleSpec | None:
        """Check a module and find its class; return None after a mistake."""
        choice = entry.loader
        if (entry.module is None) == (choice is None):
            text = "give either module = 'package.file:Class' or a loader with an entrypoint"
            self.report(path, entry.name, text)
            return None
        if choice is None:
            choice = LoaderOfModule(entrypoint={MODULE_PATH: entry.module})
            place = f"{path}.module"
        else:
            place = f"{path}.loader.entrypoint"
        if (loader := loaders.get(choice.name)) is None:
            self.report(f"{path}.loader.name", choice.name, refusal_of(choice.name))
            return None
        try:
            loaded = load(loader, choice.entrypoint, self.folder)
        except InvalidEntrypoint as error:
            key = f"{place}.{error.key}" if error.key and entry.module is None else place
            value = entry.module or choice.entrypoint.get(error.key, choice.entrypoint)
            self.report(key, value, str(error))
            return None
        args = entry.args or {}
        model: Any = getattr(loaded.factory, "Arguments", None)
        if model is not None:
            try:
                model.model_validate(args)
            except ValidationError as error:
                of = f"; of module {entry.name!r}"
                for line in reading.explain(error, model, "", at=f"{path}.args"):
                    key, text = re.findall(r": ([^ :]+)(.*)", line, re.DOTALL)[0]
                    self.mistakes.append((key, f"{text}{of}"))
        options = ModuleOptions(
            queue=entry.queue.bounds(DEFAULT_QUEUE if entry.store is None else STORED),
            restart=entry.restart,
            on_error=entry.on_error,
            detached=entry.detached,
            hold=True,
            store=None if entry.store is None else self.folder / entry.store,
            store_mode=entry.store_mode,
        )
        return ModuleSpec(entry.name, args, options, loader, choice.entrypoint, loaded)

    def links(self, entries: list[LinkEntry], names: set[str]) -> None:
        """Check that links join modules, each pair once."""
        links = set(self.known_links)
        for index, entry in enumerate(entries):
            path = f"links.{index}"
            if entry.source != ANY and entry.source not in names:
                self.add_unknown(f"{path}.source", entry.source, names)
            if entry.sink == ANY:
                self.report(f"{path}.sink", entry.sink, "only a source can be all modules")
            elif entry.sink not in names:
                self.add_unknown(f"{path}.sink", entry.sink, names)
            link = (entry.source, entry.sink)
            if link in links:
                self.report(path, " -> ".join(link), "this link exists already")
            links.add(link)


#: A value that changes when a file is written or replaced; None if there is no file.
Mark = tuple[int, int, int] | None


class FileWatch:
    """Calls `changed(path)` on a separate thread when a file was written or replaced."""

    def __init__(self, path: Path, changed: Callable[[Path], None], seen: Mark) -> None:
        """Watch a file.

        Args:
            path: the path of the file.
            changed: called with the path.
            seen: the `mark_of` the file before it was read; later changes are reported.
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
        """Stop watching; within `changed` it does not wait for itself."""
        self._over.set()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        """Check the file periodically."""
        while not self._over.wait(WATCH_INTERVAL):
            mark = mark_of(self._path)
            if mark is None or mark == self._seen:
                continue  # a missing file is about to be replaced
            self._seen = mark
            try:
                self._changed(self._path)
            except BaseException as error:  # noqa: BLE001  # the watch must continue
                logged(_log, "%s changed, but the callback failed", self._path, error=error)


def mark_of(path: Path) -> Mark:
    """Return a value that changes when a file is written or replaced; None without a file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
