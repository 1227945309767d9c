"""The configuration file of a router: TOML, with all mistakes reported at once.

Each table validates its keys and makes settings from them. Paths in the file are relative to
its folder. Functions are named `module:function`; the command `callboard mqtt run` looks up
plain names in the file's `app`.
"""

import importlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, replace
from difflib import get_close_matches
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field, StrictBool, create_model, model_validator

from callboard.configuration import reading
from callboard.model.conditions import check_conditions
from callboard.mqtt.access.acl import EVERYBODY, AclEntry, is_covered, parse_rule
from callboard.mqtt.access.auth import Security
from callboard.mqtt.access.ban import BanList
from callboard.mqtt.access.mosquitto_hash import parse_hash
from callboard.mqtt.access.scram import ScramKeys
from callboard.mqtt.port.hooks import Hooks
from callboard.mqtt.port.limits import NetworkLimits
from callboard.mqtt.port.listener import ListenerSettings
from callboard.mqtt.router.datalog import SEGMENT_BYTES, SEGMENT_COUNT
from callboard.mqtt.router.limits import CustomSegment, Limits
from callboard.mqtt.service.bridge import BridgeSettings
from callboard.mqtt.service.bridge_relay import BridgeTopics
from callboard.mqtt.service.claims import SessionPolicy
from callboard.mqtt.service.config import RouterConfig
from callboard.mqtt.service.destination import Destination
from callboard.mqtt.service.rules import Rule
from callboard.mqtt.service.topic_bridge import TopicMap
from callboard.mqtt.wire.errors import ListenError, MqttError
from callboard.mqtt.wire.topic import (
    SHARE,
    check_filter,
    is_valid_topic,
    matches,
    split_share,
)
from callboard.support.files.private_file import check_mode
from callboard.tls.contexts import Tls

FunctionFinder = Callable[[str], Callable[..., Any]]


class MqttConfigError(MqttError, ValueError):
    """A configuration cannot be used; `lines` has one for each mistake."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__("; ".join(lines))
        self.lines = lines


# --- formats of texts ---


def _form(is_valid: Callable[[str], bool], problem: str) -> Any:
    """Return the annotation of a text with a required format."""

    def parse(text: str) -> None:
        if not is_valid(text):
            message = f"{text!r} {problem}"
            raise ValueError(message)

    return reading.text_form(parse)


def _parse_listener(text: str) -> None:
    """Refuse a text that is not an address of a listener."""
    try:
        ListenerSettings(text, Tls()).parse()
    except ListenError as error:
        raise ValueError(str(error)) from None


def _is_function_name(text: str) -> bool:
    """Whether a text can name a function."""
    return all(part.isidentifier() for part in text.replace(":", ".").split("."))


def _parse_filter(text: str) -> None:
    """Refuse a text that is not a topic filter."""
    try:
        check_filter(text)
    except ValueError as error:
        message = f"{text!r} is not a topic filter: {error}"
        raise ValueError(message) from None


def _parse_plain_filter(text: str) -> None:
    """Refuse a text that is not a topic filter, or is one of a shared subscription."""
    _parse_filter(text)
    group, plain = split_share(text)
    if group:
        message = f"{text!r} is a shared subscription, not allowed here; write {plain!r}"
        raise ValueError(message)


def _is_origin(text: str) -> bool:
    """Whether a text is an origin as browsers send it."""
    return re.fullmatch(r"https?://[^/\s*]+|null", text) is not None


def _is_prefix(text: str) -> bool:
    """Whether topics can begin with a text."""
    return not text or (is_valid_topic(text) and not text.startswith(SHARE))


Filter = Annotated[str, reading.text_form(_parse_filter)]
PlainFilter = Annotated[str, reading.text_form(_parse_plain_filter)]
Topic = Annotated[str, _form(is_valid_topic, "is not a topic: wildcards are not allowed")]
Origin = Annotated[str, _form(_is_origin, "is not an origin; write https://HOST, no path")]
Prefix = Annotated[str, _form(_is_prefix, "cannot begin a topic: wildcards are not allowed")]
Allowed = list[Annotated[str, reading.text_form(parse_rule)]]
Denied = list[Annotated[str, reading.text_form(partial(parse_rule, denies=True))]]
Function = Annotated[str, _form(_is_function_name, "is not a function; write module:function")]
Ban = Annotated[str, reading.text_form(lambda text: BanList((text,)))]
Qos = Literal[0, 1, 2]


# --- the tables ---


class TlsTable(reading.Table):
    """PEM files for TLS."""

    certificate: str | None = None
    key: str | None = None
    authority: str | None = None
    revoked: str | None = None

    def files(self) -> dict[str, str | None]:
        """Return the names of the files, by key."""
        return {key: getattr(self, key) for key in TlsTable.model_fields}

    def tls(self, folder: Path, *, mutual: bool = False) -> Tls | None:
        """Return the settings; None if no file of TLS is named."""
        if self.certificate is None and self.authority is None:
            return None
        paths = {
            key: None if name is None else folder / name for key, name in self.files().items()
        }
        return Tls(**paths, mutual=mutual)


class ListenerTable(TlsTable):
    """`[[listeners]]`."""

    address: Annotated[str, reading.text_form(_parse_listener)]
    client_certificates: StrictBool = False
    tenants: StrictBool = False
    certificate_user: Literal["common name", "subject"] = "common name"
    mount_point: Prefix = ""
    maximum_qos: Qos = 2
    anonymous: StrictBool | None = None
    users: "list[UserTable] | None" = None
    acl: "list[AclTable] | None" = None
    origins: list[Origin] = []
    hosts: list[str] = []

    def settings(self, folder: Path) -> ListenerSettings:
        """Return the settings of the listener."""
        tls = self.tls(folder, mutual=self.client_certificates)
        origins, hosts = tuple(self.origins), tuple(self.hosts)
        rest = self.certificate_user, self.mount_point, self.maximum_qos
        return ListenerSettings(self.address, tls, self.tenants, origins, hosts, *rest)


def _limit_fields() -> dict[str, Any]:
    """Return a field of `[limits]` for each limit; None stands for a missing key."""
    limits = {}
    for item in (*fields(Limits), *fields(NetworkLimits)):
        kind: Any = item.type
        if item.metadata:  # it is a limit that a file may set
            limits[item.name] = (
                kind | None,
                Field(
                    default=None,
                    alias=item.metadata["key"] or None,
                    strict=not issubclass(kind, Enum),
                    **item.metadata["bounds"],
                ),
            )
    return limits


#: `[limits]`: the fields have the names that they have in `Limits` or `NetworkLimits`; the
#: aliases are the keys of the file.
LimitsTable: Final = create_model(
    "LimitsTable", __base__=reading.StrictTable, **_limit_fields()
)


class UserTable(reading.Table):
    """`[[users]]`: a password, keys for SCRAM-SHA-256, or both."""

    name: Annotated[str, _form(lambda name: name not in {"", "*"}, "is not the name of a user")]
    password: Annotated[str, reading.text_form(parse_hash)] | None = Field(
        default=None, repr=False
    )
    scram: Annotated[str, reading.text_form(ScramKeys.parse)] | None = Field(
        default=None, repr=False
    )

    @model_validator(mode="after")
    def _check(self) -> "UserTable":
        """Refuse values that contradict each other."""
        if self.password is None and self.scram is None:
            message = f"the user {self.name!r} has neither a password nor scram"
            raise ValueError(message)
        return self


class AuthTable(reading.StrictTable):
    """`[auth]`."""

    anonymous: bool = False
    bans: list[Ban] = []
    login_failures: int = Field(default=20, ge=0)
    check_filters: bool = True
    methods: dict[str, Function] = {}


class AclTable(reading.Table):
    """`[[acl]]`."""

    user: str
    allow: Allowed = []
    deny: Denied = []


class HooksTable(reading.Table):
    """`[hooks]`: functions."""

    connect: Function | None = None
    subscribe: Function | None = None
    publish: Function | None = None
    deliver: Function | None = None


class FilterSegmentTable(reading.StrictTable):
    """`[[segments]]`."""

    filter: PlainFilter
    max_segment_size: int = Field(default=SEGMENT_BYTES, ge=1024)
    max_segment_count: int = Field(default=SEGMENT_COUNT, ge=1)


class DestinationTable(reading.Table):
    """`to` in `[[rules]]`."""

    topic: str = ""
    actor: str = ""
    queue: str = ""
    store: str = ""
    log: str = ""
    retain: StrictBool = False
    state: str | None = None
    key: str = "{topic}"
    file: str | None = None
    values: Literal["text", "json", "bytes"] = "json"
    attempts: int = Field(default=5, ge=1)
    timeout: float = Field(default=30.0, gt=0)

    @model_validator(mode="after")
    def _check(self) -> "DestinationTable":
        """Refuse values that contradict each other."""
        Destination(**dict(self))
        return self

    def settings(self, folder: Path) -> Destination:
        """Return the destination; paths are relative to the folder."""
        values = dict(self)
        if self.log:
            values["log"] = str(folder / self.log)
        if self.file is not None:
            values["file"] = str(folder / self.file)
        return Destination(**values)


class RuleTable(reading.Table):
    """`[[rules]]`: a filter, and a function or a destination."""

    filter: PlainFilter | None = None
    source: PlainFilter | None = Field(default=None, alias="from")
    function: Function | None = None
    topic: Topic | None = None
    qos: Qos = 1
    conditions: dict[str, Any] = Field(default={}, alias="where")
    select: str | list[str] | None = None
    to: DestinationTable | None = None

    @model_validator(mode="after")
    def _check(self) -> "RuleTable":
        """Refuse values that contradict each other."""
        check_conditions(self.conditions)
        if (self.filter is None) == (self.source is None):
            message = "a rule needs one topic filter: from"
            raise ValueError(message)
        if (self.function is None) == (self.to is None):
            message = "a rule needs a function, or a destination (to)"
            raise ValueError(message)
        if self.topic is not None and self.function is None:
            message = "topic belongs to a function; write to = { topic = … }"
            raise ValueError(message)
        if self.function is not None and self.select is not None:
            message = "select belongs to a destination; a function selects itself"
            raise ValueError(message)
        return self

    def settings(self, folder: Path, function: Callable[..., Any] | None) -> Rule:
        """Return the rule with its function."""
        select = tuple(self.select) if isinstance(self.select, list) else self.select
        to = None if self.to is None else self.to.settings(folder)
        topic_filter = self.source or self.filter or ""
        return Rule(topic_filter, function, self.topic, self.qos, self.conditions, select, to)


class BridgeTopicTable(reading.Table):
    """`[[bridges.topics]]`."""

    filter: Annotated[str, reading.text_form(lambda text: _parse_filter(text or "#"))]
    direction: Literal["in", "out", "both"] = "in"
    qos: Qos = 1
    prefix: Prefix = ""
    local_prefix: Prefix = ""
    remote_prefix: Prefix = ""

    @model_validator(mode="after")
    def _check(self) -> "BridgeTopicTable":
        """Refuse an empty filter without the prefixes that name a single topic."""
        if not self.filter and not (self.local_prefix and self.remote_prefix):
            message = "an empty filter needs local_prefix and remote_prefix, which are topics"
            raise ValueError(message)
        return self


class BridgeTable(TlsTable):
    """`[[bridges]]`."""

    address: str
    topics: list[BridgeTopicTable] = Field(min_length=1)
    client_id: str = ""
    fallbacks: list[str] = []
    notifications: bool = True
    retain: bool = True
    packet_size: int | None = Field(default=None, ge=16)
    username: str | None = None
    password: str | None = Field(default=None, repr=False)
    version: Literal["5", "3.1.1"] = "5"
    keep_alive: int = Field(default=60, ge=1, le=65_535)
    reconnect_delay: float = Field(default=1.0, gt=0)

    def settings(self, folder: Path) -> BridgeSettings:
        """Return the settings of the bridge."""
        values = self.model_dump(exclude={*TlsTable.model_fields, "topics", "password"})
        values["fallbacks"] = tuple(self.fallbacks)
        topics = tuple(BridgeTopics(*dict(topic).values()) for topic in self.topics)
        password = None if self.password is None else self.password.encode()
        return BridgeSettings(**values, topics=topics, password=password, tls=self.tls(folder))


class ClusterTable(reading.Table):
    """`[cluster]`: settings of a router that is one of several."""

    sessions: SessionPolicy = SessionPolicy.TAKE_OVER


class DoorTable(reading.Table):
    """`[[door]]`: which MQTT topics are mapped to topics of the cluster."""

    mqtt: str = ""
    endpoint: str = "/mqtt/"
    direction: Literal["in", "out", "both"] = "both"
    values: Literal["text", "json", "bytes"] = "text"
    qos: Qos = 1
    retain: bool = False
    otherwise: Literal["bytes", "text", "refused"] = "bytes"
    acknowledge: Literal["arrival", "handled"] = "arrival"
    actor: str = ""
    queue: str = ""
    attempts: int = Field(default=5, ge=1)
    timeout: float = Field(default=30.0, gt=0)

    @model_validator(mode="after")
    def _check(self) -> "DoorTable":
        TopicMap(**dict(self))
        return self


class NodeTable(reading.Table):
    """`[node]`: the cluster that the router's node joins."""

    join: list[str] = []
    listen: reading.HostPort | None = None
    secret_file: str | None = None
    allow_unsealed: bool = False
    encrypt: bool = False


class ConfigTable(reading.Table):
    """A whole file."""

    name: str = "callboard"
    directory: str | None = None
    directory_mode: Annotated[int | None, AfterValidator(check_mode)] = None
    console: reading.HostPort | None = None
    hosts: list[str] = []
    sys_interval: float = Field(default=10.0, ge=0)
    log_level: reading.LogLevel = "warning"
    app: str | None = None
    listeners: list[ListenerTable] = Field(min_length=1)
    limits: LimitsTable = LimitsTable()  # type: ignore[valid-type]
    auth: AuthTable = AuthTable()
    users: list[UserTable] = []
    acl: list[AclTable] = []
    hooks: HooksTable = HooksTable()
    segments: list[FilterSegmentTable] = []
    rules: list[RuleTable] = []
    bridges: list[BridgeTable] = []
    node: NodeTable = NodeTable()
    cluster: ClusterTable = ClusterTable()
    door: list[DoorTable] = []


# --- from the file to the configuration ---


def read_config_file(path: Path) -> ConfigTable:
    """Read and check a file.

    Raises:
        MqttConfigError: the file has mistakes; there is a line for each: file, key, value,
            expected value, and the line of the file.
    """
    values = reading.read_values(path, MqttConfigError)
    users = reading.names_in(values, "users")

    def more(table: ConfigTable) -> list[tuple[str, str]]:
        return [(key, f" = {text}") for key, text in _contradictions(table, users)]

    whole = ConfigTable, values, MqttConfigError, more
    check = partial(reading.check_whole, *whole, source=str(path))
    return reading.numbered(path, MqttConfigError, check)


# --- settings that are valid alone, but contradict or disable one another ---


def _contradictions(table: ConfigTable, users: list[str]) -> Iterator[tuple[str, str]]:
    """Yield settings that would silently have no effect: the key, then value and advice."""
    yield from _twice("users", "name", [user.name for user in table.users])
    addresses = [listener.address for listener in table.listeners]
    fixed = [address for address in addresses if not address.endswith(":0")]
    yield from _twice("listeners", "address", fixed)
    yield from _idle_rules("", table, table.acl, users)
    for index, listener in enumerate(table.listeners):
        place = f"listeners.{index}"
        yield from _idle_keys(place, listener)
        names = users if listener.users is None else [user.name for user in listener.users]
        yield from _twice(f"{place}.users", "name", names if listener.users else [])
        yield from _idle_rules(f"{place}.", table, listener.acl or [], names)
    for index, later in enumerate(table.segments):
        for earlier in table.segments[:index]:
            if later.filter == earlier.filter or matches(later.filter, earlier.filter):
                advice = (
                    f"{earlier.filter!r} comes first and applies; put the narrower one first"
                )
                yield f"segments.{index}.filter", f"{later.filter!r}: {advice}"
                break
    names = [bridge.client_id or f" {bridge.address}" for bridge in table.bridges]
    yield from _twice("bridges", "client_id", names)
    for index, bridge in enumerate(table.bridges):
        if not bridge.address.startswith("tls://"):
            for key, name in bridge.files().items():
                if name is not None:
                    yield f"bridges.{index}.{key}", f"{name!r}: it needs an address with tls://"
        topics = [" ".join(map(str, dict(topic).values())) for topic in bridge.topics]
        yield from _twice(f"bridges.{index}.topics", "filter", topics)
        if bridge.version != "5" and bridge.password is not None and bridge.username is None:
            yield f"bridges.{index}.password", "'…': MQTT 3.1.1 needs a username with it"


def _twice(table: str, key: str, values: list[str]) -> Iterator[tuple[str, str]]:
    """Yield the values that are repeated."""
    for index, value in enumerate(values):
        if value in values[:index]:
            yield f"{table}.{index}.{key}", f"{value!r}: it is there twice; remove one"


def _idle_keys(table: str, listener: ListenerTable) -> Iterator[tuple[str, str]]:
    """Yield the keys of a listener that have no effect at its address."""
    scheme = listener.address.partition("://")[0]
    if scheme not in {"tls", "wss"}:
        keys = dict(listener.files(), client_certificates=listener.client_certificates)
        for key, value in keys.items():
            if value:
                yield f"{table}.{key}", f"{value!r}: it needs an address with tls:// or wss://"
    elif listener.client_certificates and listener.authority is None:
        yield f"{table}.client_certificates", "True: set the authority that signs them"
    if listener.tenants and not listener.client_certificates:
        yield f"{table}.tenants", "True: certificates name the tenants; set client_certificates"
    if listener.tenants and listener.mount_point:
        advice = "tenants have a prefix of their own; remove one of the two"
        yield f"{table}.mount_point", f"{listener.mount_point!r}: {advice}"
    if listener.certificate_user == "subject" and not listener.client_certificates:
        advice = "clients need certificates for it; set client_certificates"
        yield f"{table}.certificate_user", f"'subject': {advice}"
    if listener.origins and scheme not in {"ws", "wss"}:
        yield (
            f"{table}.origins",
            f"{listener.origins!r}: it needs an address with ws:// or wss://",
        )


def _idle_rules(
    place: str, table: ConfigTable, acl: list[AclTable], names: list[str]
) -> Iterator[tuple[str, str]]:
    """Yield topic rules for unknown users, and rules that deny rules override completely."""
    sources = table.hooks.connect, table.auth.methods
    has_certificates = any(listener.client_certificates for listener in table.listeners)
    is_closed = names and not any(sources) and not has_certificates
    for number, entry in enumerate(acl):
        if is_closed and entry.user not in {EVERYBODY, "", *names}:  # "": without a name
            close = get_close_matches(entry.user, names, 1) or [EVERYBODY]
            advice = f"{entry.user!r}: unknown user; write {close[0]!r}"
            yield f"{place}acl.{number}.user", advice
        denied = [
            parse_rule(rule, denies=True)
            for other in acl
            if other.user in {EVERYBODY, entry.user}
            for rule in other.deny
        ]
        for index, rule in enumerate(entry.allow):
            verbs, narrow = parse_rule(rule)
            if all(
                any(v in on and is_covered(narrow, wide) for on, wide in denied) for v in verbs
            ):
                advice = "a deny rule covers it completely and wins; remove one of them"
                yield f"{place}acl.{number}.allow.{index}", f"{rule!r}: {advice}"


def make_config(
    table: ConfigTable, folder: Path, find: FunctionFinder | None = None
) -> RouterConfig:
    """Make a router's configuration from the tables of a file.

    Args:
        table: the contents of the file.
        folder: the start of relative paths.
        find: looks up the functions that are named; the default imports `module:function`.

    Raises:
        MqttConfigError: functions cannot be found, or an address lacks a setting that it needs.
    """
    lines: list[str] = []
    find = find or find_function

    def function(key: str, text: str) -> Callable[..., Any]:
        try:
            return find(text)
        except MqttConfigError as error:
            lines.extend(f"{key} = {text!r}: {line}" for line in error.lines)
            return _not_found

    def functions(key: str, texts: Iterable[tuple[str, str | None]]) -> dict[str, Any]:
        return {
            name: function(f"{key}.{name}", text) for name, text in texts if text is not None
        }

    limits, network = make_limits(table)
    hooks = functions("hooks", table.hooks)
    config = RouterConfig(
        listeners=tuple(listener.settings(folder) for listener in table.listeners),
        limits=limits,
        network=network,
        security=make_security(table),
        authenticator=hooks.pop("connect", None),
        methods=functions("auth.methods", table.auth.methods.items()),
        hooks=Hooks(**hooks),
        rules=tuple(
            rule.settings(
                folder,
                None
                if rule.function is None
                else function(f"rules.{index}.function", rule.function),
            )
            for index, rule in enumerate(table.rules)
        ),
        bridges=tuple(bridge.settings(folder) for bridge in table.bridges),
        console=table.console,
        sys_interval=table.sys_interval,
        directory=None if table.directory is None else folder / table.directory,
        directory_mode=table.directory_mode,
        name=table.name,
        sessions=table.cluster.sessions,
        hosts=tuple(table.hosts),
    )
    places: tuple[ListenerSettings | BridgeSettings, ...] = (*config.listeners, *config.bridges)
    for place in places:
        try:
            place.parse()
        except ListenError as error:
            lines.append(str(error))
    if lines:
        raise MqttConfigError(lines)
    return config


def find_missing_files(table: ConfigTable, folder: Path) -> list[str]:
    """Return a line for each missing file: certificates, keys, secrets."""
    named = [("node.secret_file", table.node.secret_file)]
    kinds: Mapping[str, list[Any]] = {"listeners": table.listeners, "bridges": table.bridges}
    for kind, places in kinds.items():
        for index, place in enumerate(places):
            named += [(f"{kind}.{index}.{key}", name) for key, name in place.files().items()]
    return [
        f"{key} = {text!r}: there is no file {folder / text}; give the path of an existing file"
        for key, text in named
        if text is not None and not (folder / text).is_file()
    ]


def _not_found(*_: Any) -> None:
    """Replace a missing function until all mistakes are collected."""


def make_security(table: ConfigTable) -> Security:
    """Return users, topic rules and bans of a file; a reload applies them."""
    anonymous, users, acl = table.auth.anonymous, table.users, table.acl
    listeners = {
        listener.address: _users_and_rules(
            anonymous if listener.anonymous is None else listener.anonymous,
            users if listener.users is None else listener.users,
            acl if listener.acl is None else listener.acl,
        )
        for listener in table.listeners
        if (listener.anonymous, listener.users, listener.acl) != (None, None, None)
    }
    return replace(
        _users_and_rules(anonymous, users, acl),
        bans=BanList(table.auth.bans),
        login_failures=table.auth.login_failures,
        checks_filters=table.auth.check_filters,
        listeners=listeners,
    )


def _users_and_rules(
    anonymous: bool,  # noqa: FBT001
    users: list[UserTable],
    acl: list[AclTable],
) -> Security:
    """Return the users and topic rules of all listeners, or of one."""
    return Security(
        users={e.name: parse_hash(e.password) for e in users if e.password is not None},
        scram={e.name: ScramKeys.parse(e.scram) for e in users if e.scram is not None},
        anonymous=anonymous,
        acl=tuple(AclEntry(e.user, tuple(e.allow), tuple(e.deny)) for e in acl),
    )


def make_limits(table: ConfigTable) -> tuple[Limits, NetworkLimits]:
    """Return the limits of a file; a reload applies them, too."""
    values: dict[str, Any] = {
        name: value for name, value in vars(table.limits).items() if value is not None
    }
    values["custom_segments"] = tuple(
        CustomSegment(*dict(segment).values()) for segment in table.segments
    )
    of_router = {item.name for item in fields(Limits)}
    of_network = {item.name for item in fields(NetworkLimits)}
    return (
        replace(Limits(), **{key: values[key] for key in values.keys() & of_router}),
        replace(NetworkLimits(), **{key: values[key] for key in values.keys() & of_network}),
    )


def make_maps(table: ConfigTable) -> list[TopicMap]:
    """Return the topic mappings of `[[door]]`; empty if there are none."""
    return [TopicMap(**dict(door)) for door in table.door]


def find_function(text: str) -> Callable[..., Any]:
    """Import `module:function`.

    Raises:
        MqttConfigError: the function does not exist, or the value of that name is not callable.
    """
    module, _, name = text.rpartition(":")
    try:
        value = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        line = f"there is no function {text}: {error}; write module:function"
        raise MqttConfigError([line]) from error
    if not callable(value):
        raise MqttConfigError([f"{text} is not a function"])
    function: Callable[..., Any] = value
    return function
