"""The configuration file of a router: TOML, and every mistake in it at once.

Each table checks what its keys say and makes the settings that it stands for. Paths in the file
begin at its folder. Functions are named `module:function`; the command `callboard mqtt run`
finds plain names in the file's `app`.
"""

import importlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, replace
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, StrictBool, model_validator

from callboard.configuration import reading
from callboard.kernel.tls import Tls
from callboard.mqtt.access.acl import EVERYBODY, AclEntry, is_covered, parse_rule
from callboard.mqtt.access.auth import Security
from callboard.mqtt.access.ban import BanList
from callboard.mqtt.access.scram import ScramKeys
from callboard.mqtt.access.scrypt import PasswordHash
from callboard.mqtt.port.hooks import Hooks
from callboard.mqtt.port.limits import NetworkLimits
from callboard.mqtt.port.listener import ListenerSettings
from callboard.mqtt.router.datalog import SEGMENT_BYTES, SEGMENT_COUNT
from callboard.mqtt.router.limits import CustomSegment, DuplicateClientId, Limits, ShareStrategy
from callboard.mqtt.service.bridge import BridgeSettings, BridgeTopics
from callboard.mqtt.service.claims import SessionPolicy
from callboard.mqtt.service.config import RouterConfig
from callboard.mqtt.service.hub_door import TopicMap
from callboard.mqtt.service.rules import Rule
from callboard.mqtt.wire.errors import ListenError, MqttError
from callboard.mqtt.wire.topic import (
    SHARE,
    check_filter,
    is_valid_topic,
    matches,
    split_share,
)
from callboard.support.private_file import check_mode

FunctionFinder = Callable[[str], Callable[..., Any]]


class MqttConfigError(MqttError, ValueError):
    """A configuration cannot be used; `lines` has one for each mistake."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__("; ".join(lines))
        self.lines = lines


# --- what texts have to be ---


def _form(is_valid: Callable[[str], bool], problem: str) -> Any:
    """Return the annotation of a text that has to have a form."""

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
    """Refuse a text that is no filter."""
    try:
        check_filter(text)
    except ValueError as error:
        message = f"{text!r} is no topic filter: {error}"
        raise ValueError(message) from None


def _parse_plain_filter(text: str) -> None:
    """Refuse a text that is no filter, or one of a group that shares it."""
    _parse_filter(text)
    group, plain = split_share(text)
    if group:
        message = f"{text!r} is shared, which has no meaning here; write {plain!r}"
        raise ValueError(message)


def _is_origin(text: str) -> bool:
    """Whether browsers can say that a page is from there."""
    return re.fullmatch(r"https?://[^/\s*]+|null", text) is not None


def _is_prefix(text: str) -> bool:
    """Whether topics can begin with a text."""
    return not text or (is_valid_topic(text) and not text.startswith(SHARE))


Filter = Annotated[str, reading.text_form(_parse_filter)]
PlainFilter = Annotated[str, reading.text_form(_parse_plain_filter)]
Topic = Annotated[str, _form(is_valid_topic, "is no topic: it may have no wildcards")]
Origin = Annotated[str, _form(_is_origin, "is no origin; write https://HOST, with no path")]
Prefix = Annotated[str, _form(_is_prefix, "begins no topic: it may have no wildcards")]
Allowed = list[Annotated[str, reading.text_form(parse_rule)]]
Denied = list[Annotated[str, reading.text_form(partial(parse_rule, denies=True))]]
Function = Annotated[str, _form(_is_function_name, "names no function; write module:function")]
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
        """Return the settings; None without any file that TLS needs."""
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
    origins: list[Origin] = []
    hosts: list[str] = []

    def settings(self, folder: Path) -> ListenerSettings:
        """Return what the table stands for."""
        tls = self.tls(folder, mutual=self.client_certificates)
        origins, hosts = tuple(self.origins), tuple(self.hosts)
        return ListenerSettings(self.address, tls, self.tenants, origins, hosts)


#: Whole numbers from 0, from 1, of two bytes on the wire, of memory; other numbers from 0.
Natural = Annotated[int, Field(ge=0)] | None
Positive = Annotated[int, Field(gt=0)] | None
Short = Annotated[int, Field(ge=1, le=65_535)] | None
Pages = Annotated[int, Field(ge=4096)] | None
Amount = Annotated[float, Field(ge=0)] | None


class LimitsTable(reading.StrictTable):
    """`[limits]`; what is left out has the default of `Limits` or `NetworkLimits`.

    The fields are called as there; the keys of the file are the aliases.
    """

    connections: Positive = Field(default=None, alias="max_connections")
    client_id_length: Short = Field(default=None, alias="max_client_id_length")
    inflight: Short = Field(default=None, alias="max_inflight")
    receive_maximum: Short = None
    topic_alias_maximum: int | None = Field(default=None, ge=0, le=65_535)
    packet_size: int | None = Field(
        default=None, alias="max_packet_size", ge=128, le=268_435_460
    )
    session_expiry: Amount = Field(default=None, alias="max_session_expiry")
    keep_alive: int | None = Field(default=None, alias="max_keepalive", ge=0, le=65_535)
    subscriptions: Positive = Field(default=None, alias="max_subscriptions")
    subscription_bytes: Pages = Field(default=None, alias="max_subscriptions_size")
    sessions: Natural = Field(default=None, alias="max_sessions")
    sessions_bytes: Pages = Field(default=None, alias="max_sessions_size")
    message_bytes: Natural = Field(default=None, alias="max_messages_size")
    retained: Natural = Field(default=None, alias="max_retained")
    retained_bytes: Natural = Field(default=None, alias="max_retained_size")
    delivery_quota: Positive = Field(default=None, alias="max_outgoing_packets")
    delivery_bytes: Positive = Field(default=None, alias="max_outgoing_bytes")
    segment_bytes: int | None = Field(default=None, alias="max_segment_size", ge=1024)
    segment_count: int | None = Field(default=None, alias="max_segment_count", ge=1)
    acknowledge_patience: Amount = None
    max_hold: Amount = None
    journal_bytes: Natural = Field(default=None, alias="max_journal_size")
    share_strategy: ShareStrategy | None = Field(default=None, strict=False)
    duplicate_client_id: DuplicateClientId | None = Field(default=None, strict=False)
    packets_per_read: Positive = Field(default=None, alias="max_packets_per_read")
    connect_timeout: Amount = None
    linger: Amount = None
    message_rate: Amount = None
    byte_rate: Amount = None
    connection_rate: Amount = None
    reader_patience: Amount = None
    connections_per_address: Natural = Field(default=None, alias="max_connections_per_address")
    strangers: Natural = Field(default=None, alias="max_strangers")
    strangers_per_address: Natural = Field(default=None, alias="max_strangers_per_address")


class UserTable(reading.Table):
    """`[[users]]`: a password, keys for SCRAM-SHA-256, or both."""

    name: Annotated[str, _form(lambda name: name not in {"", "*"}, "is no name of a user")]
    password: Annotated[str, reading.text_form(PasswordHash.parse)] | None = Field(
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
    methods: dict[str, Function] = {}


class AclTable(reading.Table):
    """`[[acl]]`."""

    user: str = Field(min_length=1)
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


class RuleTable(reading.Table):
    """`[[rules]]`."""

    filter: PlainFilter
    function: Function
    topic: Topic | None = None
    qos: Qos = 1


class BridgeTopicTable(reading.Table):
    """`[[bridges.topics]]`."""

    filter: Filter
    direction: Literal["in", "out"] = "in"
    qos: Qos = 1
    prefix: Prefix = ""


class BridgeTable(TlsTable):
    """`[[bridges]]`."""

    address: str
    topics: list[BridgeTopicTable] = Field(min_length=1)
    client_id: str = "callboard-bridge"
    username: str | None = None
    password: str | None = Field(default=None, repr=False)
    version: Literal["5", "3.1.1"] = "5"
    keep_alive: int = Field(default=60, ge=1, le=65_535)
    reconnect_delay: float = Field(default=1.0, gt=0)

    def settings(self, folder: Path) -> BridgeSettings:
        """Return what the table stands for."""
        said = self.model_dump(exclude={*TlsTable.model_fields, "topics", "password"})
        topics = tuple(BridgeTopics(*dict(each).values()) for each in self.topics)
        password = None if self.password is None else self.password.encode()
        return BridgeSettings(**said, topics=topics, password=password, tls=self.tls(folder))


class ClusterTable(reading.Table):
    """`[cluster]`: what routers of one cluster have to do with one another."""

    sessions: SessionPolicy = SessionPolicy.TAKE_OVER


class DoorTable(reading.Table):
    """`[[door]]`: which topics of MQTT are topics of the cluster."""

    mqtt: str = ""
    endpoint: str = "/mqtt/"
    direction: Literal["in", "out", "both"] = "both"
    values: Literal["text", "json", "bytes"] = "text"
    qos: Qos = 1
    retain: bool = False
    otherwise: Literal["bytes", "text", "refused"] = "bytes"

    @model_validator(mode="after")
    def _check(self) -> "DoorTable":
        TopicMap(**dict(self))
        return self


class NodeTable(reading.Table):
    """`[node]`: the cluster that the router's node is in."""

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
    limits: LimitsTable = LimitsTable()
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


# --- what a file makes ---


def read_config_file(path: Path) -> ConfigTable:
    """Read and check a file.

    Raises:
        MqttConfigError: with a line for each mistake: file, key, value, what is expected, and
            the line of the file.
    """
    values = reading.read_values(path, MqttConfigError)
    users = reading.names_in(values, "users")

    def more(table: ConfigTable) -> list[tuple[str, str]]:
        return [(at, f" = {said}") for at, said in _contradictions(table, users)]

    whole = ConfigTable, values, MqttConfigError, more
    check = partial(reading.check_whole, *whole, source=str(path))
    return reading.numbered(path, MqttConfigError, check)


# --- what is right by itself, and has no effect or another one beside the rest ---


def _contradictions(table: ConfigTable, users: list[str]) -> Iterator[tuple[str, str]]:
    """Return what would silently be something else, each by its key: value, and what to do."""
    yield from _twice("users", "name", [each.name for each in table.users])
    fixed = [each.address for each in table.listeners if not each.address.endswith(":0")]
    yield from _twice("listeners", "address", fixed)
    for at, listener in enumerate(table.listeners):
        yield from _idle_keys(f"listeners.{at}", listener)
    yield from _idle_rules(table, users)
    for at, later in enumerate(table.segments):
        for before in table.segments[:at]:
            if later.filter == before.filter or matches(later.filter, before.filter):
                what = (
                    f"{before.filter!r} stands before it and holds; put the narrower one first"
                )
                yield f"segments.{at}.filter", f"{later.filter!r}: {what}"
                break
    names = [f"{each.address} {each.client_id}" for each in table.bridges]
    yield from _twice("bridges", "client_id", names)
    for at, bridge in enumerate(table.bridges):
        if not bridge.address.startswith("tls://"):
            for key, name in bridge.files().items():
                if name is not None:
                    yield f"bridges.{at}.{key}", f"{name!r}: it is for an address with tls://"
        carried = [f"{each.direction} {each.filter} {each.prefix}" for each in bridge.topics]
        yield from _twice(f"bridges.{at}.topics", "filter", carried)
        if bridge.version != "5" and bridge.password is not None and bridge.username is None:
            yield f"bridges.{at}.password", "'…': MQTT 3.1.1 has none without a username"


def _twice(where: str, key: str, values: list[str]) -> Iterator[tuple[str, str]]:
    """Return the values that stand there a second time."""
    for at, value in enumerate(values):
        if value in values[:at]:
            yield f"{where}.{at}.{key}", f"{value!r}: it is there already; take one of them out"


def _idle_keys(where: str, listener: ListenerTable) -> Iterator[tuple[str, str]]:
    """Return the keys of a listener that have no effect at its address."""
    scheme = listener.address.partition("://")[0]
    if scheme not in {"tls", "wss"}:
        keys = dict(listener.files(), client_certificates=listener.client_certificates)
        for key, value in keys.items():
            if value:
                yield f"{where}.{key}", f"{value!r}: it is for an address with tls:// or wss://"
    elif listener.client_certificates and listener.authority is None:
        yield f"{where}.client_certificates", "True: it needs the authority that signs them"
    if listener.tenants and not listener.client_certificates:
        yield f"{where}.tenants", "True: tenants stand in certificates; set client_certificates"
    if listener.origins and scheme not in {"ws", "wss"}:
        yield (
            f"{where}.origins",
            f"{listener.origins!r}: it is for an address with ws:// or wss://",
        )


def _idle_rules(table: ConfigTable, names: list[str]) -> Iterator[tuple[str, str]]:
    """Return topic rules about nobody, and those of which others leave nothing."""
    others = table.hooks.connect, table.auth.methods
    has_certificates = any(each.client_certificates for each in table.listeners)
    is_closed = names and not any(others) and not has_certificates
    for at, entry in enumerate(table.acl):
        if is_closed and entry.user not in {EVERYBODY, *names}:
            close = get_close_matches(entry.user, names, 1) or [EVERYBODY]
            yield f"acl.{at}.user", f"{entry.user!r}: there is no such user; write {close[0]!r}"
        denied = [
            parse_rule(rule, denies=True)
            for each in table.acl
            if each.user in {EVERYBODY, entry.user}
            for rule in each.deny
        ]
        for index, rule in enumerate(entry.allow):
            verbs, narrow = parse_rule(rule)
            if all(
                any(v in on and is_covered(narrow, wide) for on, wide in denied) for v in verbs
            ):
                what = "a rule of deny covers all of it and stands above; take one of them out"
                yield f"acl.{at}.allow.{index}", f"{rule!r}: {what}"


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
        listeners=tuple(each.settings(folder) for each in table.listeners),
        limits=limits,
        network=network,
        security=make_security(table),
        authenticator=hooks.pop("connect", None),
        methods=functions("auth.methods", table.auth.methods.items()),
        hooks=Hooks(**hooks),
        rules=tuple(
            Rule(e.filter, function(f"rules.{index}.function", e.function), e.topic, e.qos)
            for index, e in enumerate(table.rules)
        ),
        bridges=tuple(each.settings(folder) for each in table.bridges),
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
    """Return a line for each file that is named and not there; certificates, keys, secrets."""
    named = [("node.secret_file", table.node.secret_file)]
    kinds: Mapping[str, list[Any]] = {"listeners": table.listeners, "bridges": table.bridges}
    for kind, places in kinds.items():
        for index, place in enumerate(places):
            named += [(f"{kind}.{index}.{key}", name) for key, name in place.files().items()]
    return [
        f"{key} = {text!r}: there is no file {folder / text}; give the path of one"
        for key, text in named
        if text is not None and not (folder / text).is_file()
    ]


def _not_found(*_: Any) -> None:
    """Stand for a function that cannot be found; the configuration is refused."""


def make_security(table: ConfigTable) -> Security:
    """Return users, topics and bans of a file: what a reload takes over."""
    users = table.users
    return Security(
        users={e.name: PasswordHash.parse(e.password) for e in users if e.password is not None},
        scram={e.name: ScramKeys.parse(e.scram) for e in users if e.scram is not None},
        anonymous=table.auth.anonymous,
        acl=tuple(AclEntry(e.user, tuple(e.allow), tuple(e.deny)) for e in table.acl),
        bans=BanList(table.auth.bans),
        login_failures=table.auth.login_failures,
    )


def make_limits(table: ConfigTable) -> tuple[Limits, NetworkLimits]:
    """Return the limits of a file: what a reload takes over, too."""
    given: dict[str, Any] = {name: value for name, value in table.limits if value is not None}
    given["custom_segments"] = tuple(
        CustomSegment(*dict(each).values()) for each in table.segments
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
        value = getattr(importlib.import_module(where), name)
    except (ImportError, AttributeError, ValueError) as error:
        line = f"there is no function {text}: {error}; write module:function"
        raise MqttConfigError([line]) from error
    if not callable(value):
        raise MqttConfigError([f"{text} is no function"])
    function: Callable[..., Any] = value
    return function
