"""The tables of a router's configuration file, and what their keys may say."""

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from callboard.mqtt.acl import parse_rule
from callboard.mqtt.ban import BanList
from callboard.mqtt.claims import SessionPolicy
from callboard.mqtt.datalog import SEGMENT_BYTES, SEGMENT_COUNT
from callboard.mqtt.errors import ListenError
from callboard.mqtt.hub_door import TopicMap
from callboard.mqtt.limits import ShareStrategy
from callboard.mqtt.listener import ListenerSettings
from callboard.mqtt.scram import ScramKeys
from callboard.mqtt.scrypt import PasswordHash
from callboard.mqtt.topic import is_valid_filter, is_valid_topic
from proxies.tls import Tls


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def _check_filter(text: str) -> str:
    if not is_valid_filter(text):
        msg = f"{text!r} is no topic filter"
        raise ValueError(msg)
    return text


def _check_topic(text: str) -> str:
    if not is_valid_topic(text):
        msg = f"{text!r} is no topic: it may have no wildcards"
        raise ValueError(msg)
    return text


def _check_rule(text: str) -> str:
    parse_rule(text)
    return text


def _check_hash(text: str) -> str:
    PasswordHash.parse(text)
    return text


def _check_scram(text: str) -> str:
    ScramKeys.parse(text)
    return text


def _check_ban(text: str) -> str:
    BanList((text,))
    return text


def _check_listener(text: str) -> str:
    try:
        ListenerSettings(text, Tls()).parse()
    except ListenError as error:
        raise ValueError(str(error)) from None
    return text


def _check_host_port(text: str) -> str:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65_535:
        msg = f"{text!r} is no HOST:PORT; write it like 127.0.0.1:9465"
        raise ValueError(msg)
    return text


def _check_function(text: str) -> str:
    if not all(part.isidentifier() for part in text.replace(":", ".").split(".")):
        msg = f"{text!r} names no function; write module:function"
        raise ValueError(msg)
    return text


Filter = Annotated[str, AfterValidator(_check_filter)]
Topic = Annotated[str, AfterValidator(_check_topic)]
Rights = list[Annotated[str, AfterValidator(_check_rule)]]
Function = Annotated[str, AfterValidator(_check_function)]
Qos = Literal[0, 1, 2]


class TlsTable(_Table):
    """PEM files for TLS."""

    certificate: str | None = None
    key: str | None = None
    authority: str | None = None


class ListenerTable(TlsTable):
    """`[[listeners]]`."""

    address: Annotated[str, AfterValidator(_check_listener)]
    client_certificates: bool = False
    tenants: bool = False
    origins: list[str] = []


class LimitsTable(_Table):
    """`[limits]`; what is left out has the default of `Limits` or `NetworkLimits`."""

    max_connections: int | None = Field(default=None, gt=0)
    max_client_id_length: int | None = Field(default=None, ge=1, le=65_535)
    max_inflight: int | None = Field(default=None, ge=1, le=65_535)
    receive_maximum: int | None = Field(default=None, ge=1, le=65_535)
    topic_alias_maximum: int | None = Field(default=None, ge=0, le=65_535)
    max_packet_size: int | None = Field(default=None, ge=128, le=268_435_460)
    max_session_expiry: float | None = Field(default=None, ge=0)
    max_keepalive: int | None = Field(default=None, ge=0, le=65_535)
    max_subscriptions: int | None = Field(default=None, gt=0)
    max_retained: int | None = Field(default=None, ge=0)
    max_outgoing_packets: int | None = Field(default=None, gt=0)
    max_outgoing_bytes: int | None = Field(default=None, gt=0)
    max_segment_size: int | None = Field(default=None, ge=1024)
    max_segment_count: int | None = Field(default=None, ge=1)
    acknowledge_patience: float | None = Field(default=None, ge=0)
    max_hold: float | None = Field(default=None, ge=0)
    max_journal_size: int | None = Field(default=None, ge=0)
    share_strategy: ShareStrategy | None = None
    max_packets_per_read: int | None = Field(default=None, gt=0)
    connect_timeout: float | None = Field(default=None, ge=0)
    linger: float | None = Field(default=None, ge=0)
    message_rate: float | None = Field(default=None, ge=0)
    byte_rate: float | None = Field(default=None, ge=0)
    connection_rate: float | None = Field(default=None, ge=0)
    reader_patience: float | None = Field(default=None, ge=0)


class UserTable(_Table):
    """`[[users]]`: a password, keys for SCRAM-SHA-256, or both."""

    name: str = Field(min_length=1)
    password: Annotated[str, AfterValidator(_check_hash)] | None = None
    scram: Annotated[str, AfterValidator(_check_scram)] | None = None

    @model_validator(mode="after")
    def _check(self) -> "UserTable":
        if self.password is None and self.scram is None:
            msg = f"the user {self.name!r} has neither a password nor scram"
            raise ValueError(msg)
        return self


class AuthTable(_Table):
    """`[auth]`."""

    anonymous: bool = False
    bans: list[Annotated[str, AfterValidator(_check_ban)]] = []
    login_failures: int = Field(default=20, ge=0)
    methods: dict[str, Function] = {}


class AclTable(_Table):
    """`[[acl]]`."""

    user: str = Field(min_length=1)
    allow: Rights = []
    deny: Rights = []


class HooksTable(_Table):
    """`[hooks]`: functions."""

    connect: Function | None = None
    subscribe: Function | None = None
    publish: Function | None = None
    deliver: Function | None = None


class SegmentTable(_Table):
    """`[[segments]]`."""

    filter: Filter
    max_segment_size: int = Field(default=SEGMENT_BYTES, ge=1024)
    max_segment_count: int = Field(default=SEGMENT_COUNT, ge=1)


class RuleTable(_Table):
    """`[[rules]]`."""

    filter: Filter
    function: Function
    topic: Topic | None = None
    qos: Qos = 1


class BridgeTopicTable(_Table):
    """`[[bridges.topics]]`."""

    filter: Filter
    direction: Literal["in", "out"] = "in"
    qos: Qos = 1
    prefix: str = ""


class BridgeTable(TlsTable):
    """`[[bridges]]`."""

    address: str
    topics: list[BridgeTopicTable]
    client_id: str = "callboard-bridge"
    username: str | None = None
    password: str | None = None
    version: Literal["5", "3.1.1"] = "5"
    keep_alive: int = Field(default=60, ge=1, le=65_535)
    reconnect_delay: float = Field(default=1.0, gt=0)


class ClusterTable(_Table):
    """`[cluster]`: what routers of one cluster have to do with one another."""

    sessions: SessionPolicy = SessionPolicy.TAKE_OVER


class DoorTable(_Table):
    """`[[door]]`: which topics of MQTT are topics of the cluster."""

    mqtt: str = ""
    endpoint: str = "/mqtt/"
    direction: Literal["in", "out", "both"] = "both"
    values: Literal["text", "json"] = "text"
    qos: Qos = 1
    retain: bool = False

    @model_validator(mode="after")
    def _check(self) -> "DoorTable":
        TopicMap(**dict(self))
        return self


class NodeTable(_Table):
    """`[node]`: the cluster that the router's node is in."""

    join: list[str] = []
    listen: Annotated[str, AfterValidator(_check_host_port)] | None = None
    secret_file: str | None = None


class ConfigTable(_Table):
    """A whole file."""

    name: str = "callboard"
    directory: str | None = None
    console: Annotated[str, AfterValidator(_check_host_port)] | None = None
    sys_interval: float = Field(default=10.0, ge=0)
    log_level: Literal["debug", "info", "warning", "error", "critical"] = "warning"
    app: str | None = None
    listeners: list[ListenerTable] = Field(min_length=1)
    limits: LimitsTable = LimitsTable()
    auth: AuthTable = AuthTable()
    users: list[UserTable] = []
    acl: list[AclTable] = []
    hooks: HooksTable = HooksTable()
    segments: list[SegmentTable] = []
    rules: list[RuleTable] = []
    bridges: list[BridgeTable] = []
    node: NodeTable = NodeTable()
    cluster: ClusterTable = ClusterTable()
    door: list[DoorTable] = []
