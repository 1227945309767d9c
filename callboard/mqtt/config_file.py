"""The configuration file of a router: TOML, and every mistake in it at once.

Paths in the file begin at its folder. Functions are named `module:function`; the command
`callboard mqtt run` finds plain names in the file's `app`.
"""

import importlib
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from callboard.mqtt.acl import AclEntry
from callboard.mqtt.auth import Security
from callboard.mqtt.ban import BanList
from callboard.mqtt.bridge_settings import BridgeSettings, BridgeTopics
from callboard.mqtt.config import RouterConfig
from callboard.mqtt.config_tables import (
    BridgeTable,
    ConfigTable,
    ListenerTable,
    TlsTable,
)
from callboard.mqtt.door import NetworkLimits
from callboard.mqtt.errors import ListenError, MqttError
from callboard.mqtt.hooks import Hooks
from callboard.mqtt.hub_door import TopicMap
from callboard.mqtt.limits import CustomSegment, Limits
from callboard.mqtt.listener import ListenerSettings
from callboard.mqtt.rules import Rule
from callboard.mqtt.scram import ScramKeys
from callboard.mqtt.scrypt import PasswordHash
from proxies.tls import Tls

FunctionFinder = Callable[[str], Callable[..., Any]]

#: Keys of `[limits]`, and the fields of `Limits` and `NetworkLimits` that they set.
LIMIT_KEYS: Final = {
    "max_connections": "connections",
    "max_client_id_length": "client_id_length",
    "max_inflight": "inflight",
    "receive_maximum": "receive_maximum",
    "topic_alias_maximum": "topic_alias_maximum",
    "max_packet_size": "packet_size",
    "max_session_expiry": "session_expiry",
    "max_keepalive": "keep_alive",
    "max_subscriptions": "subscriptions",
    "max_retained": "retained",
    "max_outgoing_packets": "delivery_quota",
    "max_outgoing_bytes": "delivery_bytes",
    "max_segment_size": "segment_bytes",
    "max_segment_count": "segment_count",
    "acknowledge_patience": "acknowledge_patience",
    "max_hold": "max_hold",
    "max_journal_size": "journal_bytes",
    "share_strategy": "share_strategy",
    "max_packets_per_read": "packets_per_read",
    "connect_timeout": "connect_timeout",
    "linger": "linger",
    "message_rate": "message_rate",
    "byte_rate": "byte_rate",
    "connection_rate": "connection_rate",
    "reader_patience": "reader_patience",
}


class MqttConfigError(MqttError, ValueError):
    """A configuration cannot be used; `lines` has one for each mistake."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__("; ".join(lines))
        self.lines = lines


def read_config_file(path: Path) -> ConfigTable:
    """Read and check a file.

    Raises:
        MqttConfigError: with a line for each mistake: file, key, value, what is expected.
    """
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise MqttConfigError([f"{path}: {error.strerror}; give a TOML file"]) from None
    except UnicodeDecodeError:
        raise MqttConfigError([f"{path}: it is no text in UTF-8; give a TOML file"]) from None
    except tomllib.TOMLDecodeError as error:
        raise MqttConfigError([f"{path}: it is no TOML: {error}; correct it there"]) from None
    try:
        return ConfigTable.model_validate(values)
    except ValidationError as error:
        lines = [_explained(path, found) for found in error.errors()]
        raise MqttConfigError(lines) from None


def _explained(path: Path, found: Mapping[str, Any]) -> str:
    where = ".".join(map(str, found["loc"]))
    if found["type"] == "missing":
        return f"{path}: {where}: it has to be there"
    if found["type"] == "extra_forbidden":
        return f"{path}: {where}: there is no such key"
    value = repr(found["input"])
    shown = value if len(value) <= 60 else f"{value[:57]}…"
    text = found["msg"].removeprefix("Value error, ")
    return f"{path}: {where} = {shown}: {text}"


def make_config(
    table: ConfigTable, folder: Path, find: FunctionFinder | None = None
) -> RouterConfig:
    """Make a router's configuration of a file's.

    Args:
        table: what the file says.
        folder: where its paths begin.
        find: gives the functions that it names; `module:function` is imported by default.

    Raises:
        MqttConfigError: functions cannot be found, or an address lacks what it needs.
    """
    functions = _Functions(find or find_function)
    limits, network = make_limits(table)
    hooks = functions.find_all("hooks", dict(table.hooks))
    config = RouterConfig(
        listeners=tuple(_listener(each, folder) for each in table.listeners),
        limits=limits,
        network=network,
        security=make_security(table),
        authenticator=hooks.pop("connect", None),
        methods=functions.find_all("auth.methods", table.auth.methods),
        hooks=Hooks(**hooks),
        rules=tuple(
            Rule(
                each.filter,
                functions.find(f"rules.{index}.function", each.function),
                each.topic,
                each.qos,
            )
            for index, each in enumerate(table.rules)
        ),
        bridges=tuple(_bridge(each, folder) for each in table.bridges),
        console=table.console,
        sys_interval=table.sys_interval,
        directory=None if table.directory is None else folder / table.directory,
        name=table.name,
        sessions=table.cluster.sessions,
    )
    lines = functions.mistakes
    checks: list[Callable[[], object]] = [
        *(listener.parse for listener in config.listeners),
        *(bridge.parse for bridge in config.bridges),
    ]
    for check in checks:
        try:
            check()
        except ListenError as error:
            lines.append(str(error))
    if lines:
        raise MqttConfigError(lines)
    return config


def find_missing_files(table: ConfigTable, folder: Path) -> list[str]:
    """Return a line for each file that is named and not there; certificates, keys, secrets."""
    named = [("node.secret_file", table.node.secret_file)]
    for kind, places in (("listeners", table.listeners), ("bridges", table.bridges)):
        for index, place in enumerate(places):
            named += [
                (f"{kind}.{index}.{key}", getattr(place, key)) for key in TlsTable.model_fields
            ]
    return [
        f"{key} = {text!r}: there is no file {folder / text}; give the path of one"
        for key, text in named
        if text is not None and not (folder / text).is_file()
    ]


class _Functions:
    """Finds the functions that a file names, and keeps what is wrong."""

    def __init__(self, find: FunctionFinder) -> None:
        self._find = find
        self.mistakes: list[str] = []

    def find(self, key: str, text: str) -> Callable[..., Any]:
        try:
            return self._find(text)
        except MqttConfigError as error:
            self.mistakes += [f"{key} = {text!r}: {line}" for line in error.lines]
            return _not_found

    def find_all(
        self, table: str, texts: Mapping[str, str | None]
    ) -> dict[str, Callable[..., Any]]:
        return {
            name: self.find(f"{table}.{name}", text)
            for name, text in texts.items()
            if text is not None
        }


def _not_found(*_: Any) -> None:
    """Stand for a function that cannot be found; the configuration is refused."""


def make_security(table: ConfigTable) -> Security:
    """Return users, topics and bans of a file: what a reload takes over."""
    return Security(
        users={
            each.name: PasswordHash.parse(each.password)
            for each in table.users
            if each.password is not None
        },
        scram={
            each.name: ScramKeys.parse(each.scram)
            for each in table.users
            if each.scram is not None
        },
        anonymous=table.auth.anonymous,
        acl=tuple(
            AclEntry(each.user, tuple(each.allow), tuple(each.deny)) for each in table.acl
        ),
        bans=BanList(table.auth.bans),
        login_failures=table.auth.login_failures,
    )


def make_limits(table: ConfigTable) -> tuple[Limits, NetworkLimits]:
    """Return the limits of a file: what a reload takes over, too."""
    given = {LIMIT_KEYS[key]: value for key, value in table.limits if value is not None}
    given["custom_segments"] = tuple(
        CustomSegment(each.filter, each.max_segment_size, each.max_segment_count)
        for each in table.segments
    )
    of_router = {each.name for each in fields(Limits)}
    of_network = {each.name for each in fields(NetworkLimits)}
    return (
        replace(Limits(), **{key: given[key] for key in given.keys() & of_router}),
        replace(NetworkLimits(), **{key: given[key] for key in given.keys() & of_network}),
    )


def make_maps(table: ConfigTable) -> list[TopicMap]:
    """Return what the door carries; empty without a door."""
    return [TopicMap(**dict(each)) for each in table.door]


def find_function(text: str) -> Callable[..., Any]:
    """Return `module:function`.

    Raises:
        MqttConfigError: there is none.
    """
    where, _, name = text.rpartition(":")
    try:
        found = getattr(importlib.import_module(where), name)
    except (ImportError, AttributeError, ValueError) as error:
        msg = f"there is no function {text}: {error}; write module:function"
        raise MqttConfigError([msg]) from error
    if not callable(found):
        raise MqttConfigError([f"{text} is no function"])
    function: Callable[..., Any] = found
    return function


def _tls(table: TlsTable, folder: Path, *, mutual: bool) -> Tls | None:
    if table.certificate is None and table.authority is None:
        return None
    paths = {
        key: None if value is None else folder / value
        for key, value in (
            ("certificate", table.certificate),
            ("key", table.key),
            ("authority", table.authority),
        )
    }
    return Tls(**paths, mutual=mutual)


def _listener(table: ListenerTable, folder: Path) -> ListenerSettings:
    tls = _tls(table, folder, mutual=table.client_certificates)
    return ListenerSettings(table.address, tls, table.tenants, tuple(table.origins))


def _bridge(table: BridgeTable, folder: Path) -> BridgeSettings:
    return BridgeSettings(
        table.address,
        tuple(
            BridgeTopics(each.filter, each.direction, each.qos, each.prefix)
            for each in table.topics
        ),
        table.client_id,
        table.username,
        None if table.password is None else table.password.encode(),
        _tls(table, folder, mutual=False)
        or (Tls() if table.address.startswith("tls") else None),
        table.version,
        table.keep_alive,
        table.reconnect_delay,
    )
