"""The configuration file of a node: what it may say, and every mistake in it at once.

TOML. Environment variables stand above the file, options of the command above both. Paths in
the file begin at its folder.
"""

import os
import tomllib
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    create_model,
)

from callboard import Limits
from callboard.operation.settings import (
    check_class,
    check_host_port,
    check_listen,
    check_node_address,
    find_file,
)
from proxies.address import check_name
from proxies.draining import DRAIN_TIMEOUT

VARIABLES: Final = {
    "CALLBOARD_NAME": "name",
    "CALLBOARD_APP": "app",
    "CALLBOARD_LISTEN": "listen",
    "CALLBOARD_JOIN": "join",
    "CALLBOARD_SECRET_FILE": "secret_file",
    "CALLBOARD_LOG_LEVEL": "log_level",
    "CALLBOARD_HEALTH": "health",
    "CALLBOARD_DRAIN_TIMEOUT": "drain_timeout",
}
"""Environment variables and the keys they stand for; CALLBOARD_JOIN separates by commas."""

_PATHS: Final = frozenset({"app", "secret_file"})

LogLevel = Literal["debug", "info", "warning", "error", "critical"]
HostPort = Annotated[str, AfterValidator(check_host_port)]
NodeAddress = Annotated[str, AfterValidator(check_node_address)]
ClassName = Annotated[str, AfterValidator(check_class)]
ActorName = Annotated[str, AfterValidator(check_name)]
ExistingFile = Annotated[Path, AfterValidator(find_file)]


class ConfigurationError(Exception):
    """A configuration cannot be used.

    Attributes:
        lines: one for each mistake: where, key, value, what was expected.
        is_misuse: an option of the command is among them.
    """

    def __init__(self, lines: list[str], *, is_misuse: bool = False) -> None:
        super().__init__("; ".join(lines))
        self.lines = lines
        self.is_misuse = is_misuse


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TlsFiles(_Table):
    """`[tls]`: PEM files, as `Tls` takes them."""

    certificate: ExistingFile | None = None
    key: ExistingFile | None = None
    authority: ExistingFile | None = None
    mutual: bool = True


_LIMITS: Final[dict[str, Any]] = {
    limit.name: (limit.type, Field(default=limit.default, gt=0, strict=True))
    for limit in fields(Limits)
}
LimitValues: Final = create_model("LimitValues", __base__=_Table, **_LIMITS)
"""`[limits]`: the fields of `Limits`."""


class ChildEntry(_Table):
    """`[[children]]`: an actor that the node starts and supervises."""

    actor_class: ClassName = Field(alias="class")
    args: list[Any] = []
    options: dict[str, Any] = {}
    name: ActorName | None = None
    restart: Literal["permanent", "transient", "temporary"] = "permanent"


class NodeConfiguration(_Table):
    """A whole configuration."""

    app: ExistingFile | None = None
    name: str = ""
    listen: Annotated[str, AfterValidator(check_listen)] = "127.0.0.1:0"
    insecure: bool = False
    join: list[NodeAddress] = []
    secret_file: ExistingFile | None = None
    tls: TlsFiles | None = None
    spawnable: dict[str, ClassName] | None = None
    limits: LimitValues = LimitValues()  # type: ignore[valid-type]
    children: list[ChildEntry] = []
    log_level: LogLevel = "warning"
    health: HostPort | None = None
    drain_timeout: float = Field(default=DRAIN_TIMEOUT, ge=0)


def load_configuration(
    path: Path | None = None,
    options: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
) -> NodeConfiguration:
    """Read a configuration.

    Args:
        path: of the file; None for none.
        options: by key, what stands above the file and the environment.
        environment: that of the process by default.

    Raises:
        ConfigurationError: with all mistakes.
    """
    values = {} if path is None else _read(path)
    sources = dict.fromkeys(values, str(path))
    for variable, key in VARIABLES.items():
        text = (os.environ if environment is None else environment).get(variable, "")
        if text:
            values[key] = _from_variable(key, text)
            sources[key] = variable
    for key, value in (options or {}).items():
        values[key] = Path(value).absolute() if key in _PATHS else value
        sources[key] = "APP.py" if key == "app" else f"--{key.replace('_', '-')}"
    folder = Path() if path is None else path.parent
    try:
        return NodeConfiguration.model_validate(values, context={"folder": folder})
    except ValidationError as error:
        raise _explained(error, sources) from error


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        line = f"{path}: {error.strerror}; give the path of a TOML file"
    except UnicodeDecodeError:
        line = f"{path}: it is no text in UTF-8; give the path of a TOML file"
    except tomllib.TOMLDecodeError as error:
        line = f"{path}: it is no TOML: {error}; correct it there"
    raise ConfigurationError([line])


def _from_variable(key: str, text: str) -> Any:
    if key == "join":
        return [part.strip() for part in text.split(",") if part.strip()]
    return Path(text).absolute() if key in _PATHS else text


def _explained(error: ValidationError, sources: dict[str, str]) -> ConfigurationError:
    lines, is_misuse = [], False
    for found in error.errors():
        key = str(found["loc"][0])
        source = sources.get(key, "?")
        is_misuse = is_misuse or source.startswith("--") or source == "APP.py"
        where = ".".join(map(str, found["loc"]))
        prefix = source if source.startswith(("-", "A", "CALLBOARD_")) else f"{source}: {where}"
        lines.append(f"{prefix} = {_shown(found['input'])}: {_expectation(found)}")
    return ConfigurationError(lines, is_misuse=is_misuse)


def _shown(value: Any) -> str:
    text = str(value) if isinstance(value, Path) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


def _expectation(found: Any) -> str:
    if found["type"] == "extra_forbidden":
        return f"there is no such key here; {_keys_of(found['loc'])}"
    if found["type"] == "missing":
        return "it has to be there"
    text: str = found["msg"].removeprefix("Value error, ")
    return text[0].lower() + text[1:] if text.startswith("Input") else text


_TABLES: Final[dict[str, type[BaseModel]]] = {
    "tls": TlsFiles,
    "limits": LimitValues,
    "children": ChildEntry,
}


def _keys_of(where: tuple[str | int, ...]) -> str:
    table = NodeConfiguration if len(where) == 1 else _TABLES[str(where[0])]
    keys = [field.alias or name for name, field in table.model_fields.items()]
    return f"there are {', '.join(keys)}"
