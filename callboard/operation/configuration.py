"""The configuration file of a node.

The format is TOML. Environment variables override the file, and options of the command override
both. Relative paths in the file start at its folder.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field, ValidationInfo, create_model

from callboard.commitlog.folder import SERVED_NAME
from callboard.configuration import reading
from callboard.kernel.ports import Limits
from callboard.kernel.shutdown import DRAIN_TIMEOUT
from callboard.kernel.topology import check_name, parse_node_address, parse_seed

#: Environment variables and the keys that they set. CALLBOARD_JOIN is a comma-separated list.
VARIABLES: Final = {
    f"CALLBOARD_{key.upper()}": key
    for key in (
        *("name", "app", "listen", "join", "secret_file", "log_level", "health"),
        *("log_format", "drain_timeout", "when_exhausted", "permissions", "tracing"),
    )
}

_PATHS: Final = frozenset({"app", "permissions", "secret_file"})
_CLASS: Final = re.compile(r"(?:[A-Za-z_][\w.]*:)?[A-Za-z_]\w*")


class InvalidConfiguration(ValueError):
    """A configuration cannot be used.

    Attributes:
        lines: one for each mistake: source, key, value, and the expected form.
        is_misuse: whether one of the mistakes is in an option of the command.
    """

    def __init__(self, lines: list[str]) -> None:
        super().__init__("; ".join(lines))
        self.lines = lines
        self.is_misuse = any(line.startswith(("--", "APP.py")) for line in lines)


def check_class(text: str) -> None:
    """Check that a text is `module:Class`, or `Class` for a class of the app's file.

    Raises:
        ValueError: the text has another form.
    """
    if _CLASS.fullmatch(text) is None:
        message = (
            f"{text!r} is not a class name; write module:Class, or Class for one in the "
            "app's file"
        )
        raise ValueError(message)


Seed = Annotated[str, reading.text_form(parse_seed)]
ClassName = Annotated[str, reading.text_form(check_class)]
ActorName = Annotated[str, reading.text_form(check_name)]


def check_log_name(text: str) -> None:
    """Check that a log can be served under a name.

    Raises:
        ValueError: the name has characters that an address must not have.
    """
    if SERVED_NAME.fullmatch(text) is None:
        message = f"{text!r} is not a log name; use letters, digits and -_.+@="
        raise ValueError(message)


LogName = Annotated[str, reading.text_form(check_log_name)]


def _in_folder(path: Path, info: ValidationInfo) -> Path:
    """Resolve a path whose reader reports a missing file later."""
    folder: Path = (info.context or {}).get("folder", Path())
    return folder / path


ReadLater = Annotated[Path, AfterValidator(_in_folder)]


class TlsFiles(reading.Table):
    """`[tls]`: PEM files, the arguments of `Tls`."""

    certificate: reading.ExistingFile | None = None
    key: reading.ExistingFile | None = None
    authority: reading.ExistingFile | None = None
    mutual: bool = True
    revoked: reading.ExistingFile | None = None


_LIMITS: Final[dict[str, Any]] = {
    limit.name: (limit.type, Field(default=limit.default, gt=0, strict=True))
    for limit in fields(Limits)
}
#: `[limits]`: the fields of `Limits`.
LimitValues: Final = create_model("LimitValues", __base__=reading.Table, **_LIMITS)


class ChildEntry(reading.Table):
    """`[[children]]`: an actor that the node starts and supervises."""

    actor_class: ClassName = Field(alias="class")
    args: list[Any] = []
    options: dict[str, Any] = {}
    name: ActorName | None = None
    restart: Literal["permanent", "transient", "temporary"] = "permanent"
    on: list[Annotated[str, reading.text_form(parse_node_address)]] = []


class NodeConfiguration(reading.Table):
    """A whole configuration."""

    app: reading.ExistingFile | None = None
    name: str = ""
    listen: reading.Listen = "127.0.0.1:0"
    insecure: bool = False
    allow_unsealed: bool = False
    encrypt: bool = False
    join: list[Seed] = []
    secret_file: reading.ExistingFile | None = None
    permissions: ReadLater | None = None
    tls: TlsFiles | None = None
    spawnable: dict[str, ClassName] | None = None
    serve_logs: dict[LogName, ReadLater] = {}
    serve_logs_at: reading.HostPort | None = None
    limits: LimitValues = LimitValues()  # type: ignore[valid-type]
    children: list[ChildEntry] = []
    log_level: reading.LogLevel = "info"
    log_format: Literal["text", "json"] = "text"
    tracing: Literal["off", "otlp", "console"] = "off"
    health: reading.HostPort | None = None
    health_hosts: list[str] = []
    drain_timeout: float = Field(default=DRAIN_TIMEOUT, ge=0)
    when_exhausted: Literal["exit", "stay"] = "exit"


def load_configuration(
    path: Path | None = None,
    options: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
) -> NodeConfiguration:
    """Read a configuration.

    Args:
        path: path of the file; None without a file.
        options: values by key that override the file and the environment.
        environment: environment variables; those of the process by default.

    Raises:
        InvalidConfiguration: the configuration has mistakes; the error lists all of them.
    """
    values = {} if path is None else reading.read_values(path, InvalidConfiguration)
    labels: dict[str, str] = {}
    for variable, key in VARIABLES.items():
        text = (os.environ if environment is None else environment).get(variable, "")
        if text:
            values[key] = _from_variable(key, text)
            labels[key] = variable
    for key, value in (options or {}).items():
        values[key] = Path(value).absolute() if key in _PATHS else value
        labels[key] = "APP.py" if key == "app" else f"--{key.replace('_', '-')}"
    return reading.check_values(NodeConfiguration, values, InvalidConfiguration, path, labels)


def _from_variable(key: str, text: str) -> Any:
    if key == "join":
        return [part.strip() for part in text.split(",") if part.strip()]
    return Path(text).absolute() if key in _PATHS else text
