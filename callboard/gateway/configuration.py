"""Configurations of gateways: what they may say, and every mistake in them at once.

JSON or TOML with the keys of the Azure IoT gateway. Before anything is started all of it is
checked, and every module's class is found.
"""

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from actors.mailbox import Mailbox
from callboard.gateway.errors import ConfigurationError
from callboard.gateway.handle import ModuleOptions
from callboard.gateway.inbox import DEFAULT_QUEUE
from callboard.gateway.links import ANY
from callboard.gateway.loaders import (
    LOADER_TYPES,
    MODULE_PATH,
    InvalidEntrypoint,
    Loaded,
    Loader,
    built_in_loaders,
    load,
    refusal_of,
)

__all__ = ["Configuration", "ModuleSpec", "read_configuration", "read_file"]

CONFIGURATION_LIMIT: Final = 16 * 1024 * 1024
"""Bytes of a configuration file."""


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class LoaderEntry(_Table):
    """`loaders`: a loader under a name of its own."""

    type: str
    name: str = Field(min_length=1)
    configuration: dict[str, Any] = {}


class LoaderOfModule(_Table):
    """`modules.loader`: which loader, and what it loads."""

    name: str = "python"
    entrypoint: dict[str, Any] = {}


class QueueEntry(_Table):
    """`modules.queue`: the bounds before a module."""

    limit: int | None = Field(default=None, ge=1)
    bytes: int | None = Field(default=None, ge=1)
    on_full: Literal["wait", "drop_newest", "drop_oldest", "fail"] = "wait"

    def bounds(self) -> Mailbox:
        """Return what the broker takes."""
        is_open = self.limit is None and self.bytes is None
        limit = DEFAULT_QUEUE.limit if is_open else self.limit
        return Mailbox(limit=limit, bytes=self.bytes, on_full=self.on_full)


class ModuleEntry(_Table):
    """`modules`: one module."""

    name: str = Field(min_length=1)
    loader: LoaderOfModule | None = None
    module: str | None = None
    args: dict[str, Any] | None = None
    queue: QueueEntry = QueueEntry()
    restart: Literal["permanent", "transient", "temporary"] = "permanent"
    on_error: Literal["continue", "crash"] = "continue"
    detached: bool = False


class LinkEntry(_Table):
    """`links`: one link."""

    source: str
    sink: str


class _Whole(_Table):
    loaders: list[LoaderEntry] = []
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
    path = Path(path)
    kind = "TOML" if path.suffix == ".toml" else "JSON"
    try:
        if path.stat().st_size > CONFIGURATION_LIMIT:
            line = f"{path}: it is larger than {CONFIGURATION_LIMIT:,} B"
            raise ConfigurationError([line])
        text = path.read_text(encoding="utf-8")
        values: Any = tomllib.loads(text) if kind == "TOML" else json.loads(text)
    except OSError as error:
        line = f"{path}: {error.strerror}; give the path of a JSON or TOML file"
    except UnicodeDecodeError:
        line = f"{path}: it is no text in UTF-8; give the path of a JSON or TOML file"
    except (tomllib.TOMLDecodeError, json.JSONDecodeError, RecursionError) as error:
        line = f"{path}: it is no {kind}: {error}; correct it there"
    else:
        if isinstance(values, dict):
            return values
        line = f"{path}: it is a {type(values).__name__}, not an object with modules and links"
    raise ConfigurationError([line])


def read_configuration(
    values: Mapping[str, Any],
    *,
    source: str = "configuration",
    folder: Path | None = None,
    known: frozenset[str] = frozenset(),
) -> Configuration:
    """Check a configuration and find what it names.

    Args:
        values: of the file.
        source: what errors call it: the file's path.
        folder: where paths in it begin; the working directory by default.
        known: names of modules that are there already: links may lead to them.

    Raises:
        ConfigurationError: with all mistakes.
    """
    try:
        whole = _Whole.model_validate(values)
    except ValidationError as error:
        raise ConfigurationError(
            [_explained(source, each) for each in error.errors()]
        ) from error
    check = _Check(source, folder or Path.cwd(), known)
    found = check.configuration(whole)
    if check.lines:
        raise ConfigurationError(check.lines)
    return found


class _Check:
    """Looks for what the types do not say; notes every mistake."""

    def __init__(self, source: str, folder: Path, known: frozenset[str]) -> None:
        self.source = source
        self.folder = folder
        self.known = known
        self.lines: list[str] = []

    def note(self, path: str, value: object, text: str) -> None:
        self.lines.append(f"{self.source}: {path} = {_shown(value)}: {text}")

    def configuration(self, whole: _Whole) -> Configuration:
        loaders = self.loaders(whole.loaders)
        modules: dict[str, ModuleSpec] = {}
        names = set(self.known)
        for index, entry in enumerate(whole.modules):
            where = f"modules.{index}"
            if entry.name == ANY:
                self.note(f"{where}.name", entry.name, "it stands for all modules in links")
            elif entry.name in names:
                self.note(f"{where}.name", entry.name, "another module has that name")
            names.add(entry.name)
            spec = self.module(where, entry, loaders)
            if spec is not None:
                modules.setdefault(entry.name, spec)
        self.links(whole.links, names)
        dead = whole.dead_letters
        if dead is not None and dead not in names:
            self.note("dead_letters", dead, "there is no module of that name")
        links = tuple((entry.source, entry.sink) for entry in whole.links)
        return Configuration(modules, links, dead)

    def loaders(self, entries: list[LoaderEntry]) -> dict[str, Loader]:
        loaders = built_in_loaders()
        seen: set[str] = set()
        for index, entry in enumerate(entries):
            if entry.name in seen:
                self.note(f"loaders.{index}.name", entry.name, "another loader has that name")
            if entry.type not in LOADER_TYPES:
                self.note(f"loaders.{index}.type", entry.type, refusal_of(entry.type))
            seen.add(entry.name)
            loaders[entry.name] = Loader(entry.name, entry.type, entry.configuration)
        return loaders

    def module(
        self, where: str, entry: ModuleEntry, loaders: dict[str, Loader]
    ) -> ModuleSpec | None:
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
        loader = loaders.get(chosen.name)
        if loader is None:
            self.note(f"{where}.loader.name", chosen.name, _no_loader(chosen.name, loaders))
            return None
        try:
            loaded = load(loader, chosen.entrypoint, self.folder)
        except InvalidEntrypoint as error:
            key = f"{place}.{error.key}" if error.key and entry.module is None else place
            value = entry.module or chosen.entrypoint.get(error.key, chosen.entrypoint)
            self.note(key, value, str(error))
            return None
        self.arguments(f"{where}.args", entry.args or {}, loaded)
        options = ModuleOptions(
            queue=entry.queue.bounds(),
            restart=entry.restart,
            on_error=entry.on_error,
            detached=entry.detached,
            hold=True,
        )
        args = entry.args or {}
        return ModuleSpec(entry.name, args, options, loader, chosen.entrypoint, loaded)

    def arguments(self, where: str, args: dict[str, Any], loaded: Loaded) -> None:
        """Check the arguments of a module whose class says what they are."""
        model: Any = getattr(loaded.factory, "Arguments", None)
        if model is None:
            return
        try:
            model.model_validate(args)
        except ValidationError as error:
            self.lines += [
                _explained(self.source, {**each, "loc": (where, *each["loc"])}, model)
                for each in error.errors()
            ]

    def links(self, entries: list[LinkEntry], names: set[str]) -> None:
        seen: set[tuple[str, str]] = set()
        for index, entry in enumerate(entries):
            where = f"links.{index}"
            if entry.source != ANY and entry.source not in names:
                self.note(f"{where}.source", entry.source, "there is no module of that name")
            if entry.sink == ANY:
                self.note(f"{where}.sink", entry.sink, "only a source can be all modules")
            elif entry.sink not in names:
                self.note(f"{where}.sink", entry.sink, "there is no module of that name")
            link = (entry.source, entry.sink)
            if link in seen:
                self.note(where, " -> ".join(link), "this link is there already")
            seen.add(link)


def _no_loader(name: str, loaders: Mapping[str, Loader]) -> str:
    return refusal_of(name) if name not in loaders else ""


def _explained(source: str, found: Any, table: type[BaseModel] | None = None) -> str:
    where = ".".join(map(str, found["loc"])) or "the whole"
    if found["type"] == "missing":
        return f"{source}: {where}: it has to be there"
    if found["type"] == "extra_forbidden":
        return f"{source}: {where}: there is no such key here; {_keys(found['loc'], table)}"
    text: str = found["msg"].removeprefix("Value error, ")
    return f"{source}: {where} = {_shown(found['input'])}: {text[0].lower()}{text[1:]}"


_TABLES: Final[dict[str, type[BaseModel]]] = {
    "loaders": LoaderEntry,
    "modules": ModuleEntry,
    "links": LinkEntry,
    "loader": LoaderOfModule,
    "queue": QueueEntry,
}


def _keys(where: tuple[str | int, ...], table: type[BaseModel] | None) -> str:
    tables = [_TABLES[part] for part in where[:-1] if isinstance(part, str) and part in _TABLES]
    table = table or (tables[-1] if tables else _Whole)
    return f"there are {', '.join(table.model_fields)}"


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
