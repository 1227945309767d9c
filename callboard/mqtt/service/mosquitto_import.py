"""Conversion of mosquitto's files: configuration, topic rules and passwords.

`import_files` returns the text of a configuration file for our router, and a list of settings
without an equivalent. Sections of mosquitto's file have no brackets: a line `listener` or
`connection` begins one, and settings of listeners and bridges belong to the last one before
them. https://mosquitto.org/man/mosquitto-conf-5.html
"""

import json
import re
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any, Final, NamedTuple

from callboard.mqtt.access.acl import parse_rule
from callboard.mqtt.access.mosquitto_hash import MosquittoHash
from callboard.mqtt.wire.topic import check_filter, overlap
from callboard.support.dataclass import dataclass

#: Seconds by the unit of `persistent_client_expiration`.
_UNITS: Final = {"h": 3600, "d": 86_400, "w": 7 * 86_400, "m": 30 * 86_400, "y": 365 * 86_400}

#: Numbers for which our limit has another name, and 0 another meaning: the value for it.
_LIMITS: Final[dict[str, tuple[str, int]]] = {
    "max_inflight_messages": ("max_inflight", 65_535),
    "max_queued_messages": ("max_queued_messages", 0),
    "max_queued_bytes": ("max_queued_size", 0),
    "max_packet_size": ("max_packet_size", 268_435_460),
    "message_size_limit": ("max_packet_size", 268_435_460),
    "memory_limit": ("max_messages_size", 512 << 20),
    "max_keepalive": ("max_keepalive", 0),
    "max_connections": ("max_connections", 10_010),
    "max_topic_alias": ("topic_alias_maximum", 0),
    "maximum_qos": ("maximum_qos", 0),
    "max_qos": ("maximum_qos", 0),
}

#: Settings that need no equivalent, with the reason.
_NEEDLESS: Final = {
    "autosave_interval": "the journal is written before clients are answered",
    "autosave_on_changes": "the journal is written before clients are answered",
    "persistence_file": "the journal is a folder",
    "pid_file": "the service manager knows the process",
    "user": "the service manager sets the user of the process",
    "set_tcp_nodelay": "it is always set",
    "socket_domain": "the address of the listener decides",
    "allow_duplicate_messages": "a message is sent once, whatever filters match",
    "log_timestamp": "log lines have a time",
    "log_timestamp_format": "log lines have a time",
    "connection_messages": "see callboard mqtt top, trace and the console",
    "websockets_log_level": "it follows log_level",
    "start_type": "bridges start with the router",
    "try_private": "MQTT 5 has an option against loops",
    "cleansession": "bridges have a lasting session",
    "local_cleansession": "bridges have a lasting session",
    "bridge_attempt_unsubscribe": "filters of direction out are not subscribed there",
    "idle_timeout": "bridges stay connected",
    "threshold": "bridges stay connected",
    "local_clientid": "the session here has a name of its own",
    "local_username": "the bridge is a part of the router",
    "local_password": "the bridge is a part of the router",
}

_LISTENER_KEYS: Final = frozenset(
    (
        *("mount_point", "protocol", "certfile", "keyfile", "cafile", "capath", "crlfile"),
        *("require_certificate", "ciphers", "ciphers_tls1.3", "tls_version", "dhparamfile"),
        *("tls_engine", "tls_keyform", "tls_engine_kpass_sha1", "use_identity_as_username"),
        *("use_subject_as_username", "use_username_as_clientid", "psk_hint", "http_dir"),
        *("max_connections", "max_qos", "maximum_qos", "max_topic_alias", "socket_domain"),
        *("bind_interface", "websockets_origin"),
    )
)
#: Settings of listeners with `per_listener_settings`.
_ACCESS_KEYS: Final = frozenset(
    (
        *("acl_file", "password_file", "allow_anonymous", "allow_zero_length_clientid"),
        *("auto_id_prefix", "plugin", "auth_plugin", "psk_file"),
    )
)
#: Settings of bridges, besides those that begin with `bridge_`.
_BRIDGE_KEYS: Final = frozenset(
    (
        *("address", "addresses", "topic", "mqttv311", "remote_username", "username"),
        *("remote_password", "password", "remote_clientid", "clientid", "local_clientid"),
        *("local_username", "local_password", "keepalive_interval", "restart_timeout"),
        *("start_type", "cleansession", "local_cleansession", "notifications"),
        *("notification_topic", "notifications_local_only", "try_private", "round_robin"),
        *("threshold", "idle_timeout"),
    )
)


#: Files and switches of listeners by the keys of ours.
_FILES: Final = {
    "certfile": "certificate",
    "keyfile": "key",
    "cafile": "authority",
    "crlfile": "revoked",
}
_SWITCHES: Final[dict[str, tuple[str, object]]] = {
    "require_certificate": ("client_certificates", True),
    "use_subject_as_username": ("certificate_user", "subject"),
}
#: Other settings of listeners, by the keys of ours.
_CONVERTED: Final[dict[str, tuple[str, Callable[[str], object]]]] = {
    "mount_point": ("mount_point", str),
    "websockets_origin": ("origins", lambda origin: [origin]),
    "max_qos": ("maximum_qos", int),
    "maximum_qos": ("maximum_qos", int),
}


class Setting(NamedTuple):
    """A line of mosquitto's file."""

    place: str
    key: str
    value: str


class Unconverted(NamedTuple):
    """A line without an equivalent.

    Attributes:
        place: file and line.
        text: the line.
        reason: the reason, and what to do.
    """

    place: str
    text: str
    reason: str

    def __str__(self) -> str:
        return f"{self.place}: {self.text}: {self.reason}"


class Imported(NamedTuple):
    """The result of an import.

    Attributes:
        text: a configuration file.
        unconverted: lines without an equivalent.
        needless: lines that need none.
    """

    text: str
    unconverted: list[Unconverted]
    needless: list[Unconverted]


class MosquittoError(ValueError):
    """A file of mosquitto cannot be read."""


@dataclass(slots=True, eq=False)
class _Section:
    """A listener or a bridge, or the settings that belong to none."""

    place: str
    words: list[str]
    settings: list[Setting] = field(default_factory=list)

    def get(self, *keys: str) -> str:
        """Return the last value of a key, or of another name of it; empty without one."""
        values = [setting.value for setting in self.settings if setting.key in keys]
        return values[-1] if values else ""

    def is_on(self, key: str, *, default: bool = False) -> bool:
        """Return whether a switch is on."""
        value = self.get(key)
        return value.lower() in {"true", "1"} if value else default


def import_files(
    conf: Path, acl: Path | None = None, passwords: Path | None = None
) -> Imported:
    """Convert a configuration file of mosquitto.

    Args:
        conf: the file, `mosquitto.conf`.
        acl: the file of topic rules, in place of the one that the configuration names.
        passwords: the file of passwords, in place of the one that the configuration names.

    Raises:
        MosquittoError: a file cannot be read.
    """
    return _Import(conf, acl, passwords).convert()


def _lines(path: Path) -> list[str]:
    """Return the lines of a file.

    Raises:
        MosquittoError: it cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        message = f"{path} cannot be read: {error}"
        raise MosquittoError(message) from error


def _settings(path: Path) -> Iterator[Setting]:
    """Yield the settings of a file, and of the files in folders that it includes."""
    for number, line in enumerate(_lines(path), 1):
        key, _, value = line.strip().partition(" ")
        if not key or key.startswith("#"):
            continue
        if key == "include_dir":
            for included in sorted(Path(value.strip()).glob("*.conf")):
                yield from _settings(included)
        else:
            yield Setting(f"{path.name}:{number}", key, value.strip())


class _Import:
    """The conversion of one configuration."""

    def __init__(self, conf: Path, acl: Path | None, passwords: Path | None) -> None:
        self._folder, self._acl, self._passwords = conf.parent, acl, passwords
        self._unconverted: list[Unconverted] = []
        self._needless: list[Unconverted] = []
        self._general = _Section(conf.name, [])
        self._listeners: list[_Section] = []
        self._bridges: list[_Section] = []
        settings = list(_settings(conf))
        self._is_split = any(
            s.key == "per_listener_settings" and s.value.lower() == "true" for s in settings
        )
        self._sort(settings)
        self.table: dict[str, Any] = {}
        self._limits: dict[str, Any] = {}
        self._auth: dict[str, Any] = {}

    def _sort(self, settings: list[Setting]) -> None:
        """Assign each setting to its section."""
        for setting in settings:
            place, key, value = setting
            if key in {"listener", "port"}:
                words = value.split()
                if key == "port" and self._general.get("bind_address"):
                    words.append(self._general.get("bind_address"))
                self._listeners.append(_Section(place, words))
            elif key == "connection":
                self._bridges.append(_Section(place, [value]))
            elif key in _BRIDGE_KEYS or key.startswith("bridge_"):
                section = self._bridges[-1] if self._bridges else self._general
                section.settings.append(setting)
            elif self._listeners and (
                key in _LISTENER_KEYS or (self._is_split and key in _ACCESS_KEYS)
            ):
                self._listeners[-1].settings.append(setting)
            else:
                self._general.settings.append(setting)

    def convert(self) -> Imported:
        """Return the configuration, and the lines without an equivalent."""
        for setting in self._general.settings:
            self._general_setting(setting)
        listeners = [self._listener(section) for section in self._listeners]
        if not listeners:  # then mosquitto accepts all clients of its own machine
            listeners = [{"address": "127.0.0.1:1883"}]
            self._auth.setdefault("anonymous", True)
        if not self._is_split:
            self._access(self._general, self.table, self._auth)
        if self._auth.get("anonymous") is False:
            del self._auth["anonymous"]
        bridges = [self._bridge(section) for section in self._bridges]
        table = {
            **{key: value for key, value in self.table.items() if not _is_table(value)},
            "listeners": listeners,
            "limits": self._limits,
            "auth": self._auth,
            **{key: value for key, value in self.table.items() if _is_table(value)},
            "bridges": [bridge for bridge in bridges if bridge],
        }
        text = "\n".join(_toml(table)).strip() + "\n"
        return Imported(text, self._unconverted, self._needless)

    # --- notes ---

    def _miss(self, setting: Setting, reason: str) -> None:
        """Record a line without an equivalent."""
        text = f"{setting.key} {setting.value}".strip()
        self._unconverted.append(Unconverted(setting.place, text, reason))

    def _rest(self, setting: Setting) -> None:
        """Handle a line that no other function knows."""
        reason = _NEEDLESS.get(setting.key)
        if reason is None:
            self._miss(setting, "no equivalent")
        else:
            text = f"{setting.key} {setting.value}".strip()
            self._needless.append(Unconverted(setting.place, text, reason))

    # --- general settings ---

    def _general_setting(self, setting: Setting) -> None:
        """Convert a setting that belongs to no section."""
        key, value = setting.key, setting.value
        convert = {
            "persistent_client_expiration": self._expiration,
            "persistence": self._persistence,
            "persistence_location": self._persistence,
            "log_type": self._log_type,
            "log_dest": self._log_dest,
        }.get(key)
        if key in _LIMITS:
            self._limit(setting)
        elif convert is not None:
            convert(setting)
        elif key in {"retain_available", "allow_zero_length_clientid"}:
            self._limits[key] = value.lower() == "true"
        elif key == "sys_interval":
            self.table["sys_interval"] = int(value)
        elif key not in {"per_listener_settings", "bind_address", *_ACCESS_KEYS}:
            self._rest(setting)

    def _expiration(self, setting: Setting) -> None:
        """Convert the time after which absent clients are forgotten."""
        match = re.fullmatch(r"(\d+)([hdwmy])", setting.value)
        if match is None:
            self._miss(setting, "it is not a number with a unit")
        else:
            self._limits["max_session_expiry"] = int(match[1]) * _UNITS[match[2]]

    def _persistence(self, setting: Setting) -> None:
        """Set the folder of the journal."""
        if setting.key == "persistence_location":
            self._miss(setting, "choose the folder of the journal with directory")
        elif setting.value.lower() == "true":
            self.table["directory"] = "journal"
            reason = "stored messages and sessions stay in mosquitto.db; clients start anew"
            self._miss(setting, f'directory = "journal" is set; {reason}')

    def _log_dest(self, setting: Setting) -> None:
        """Report a log that does not go to stderr."""
        if setting.value.split()[:1] not in (["stderr"], ["stdout"], ["none"]):
            self._miss(setting, "the log goes to stderr, which the service manager keeps")

    def _limit(self, setting: Setting) -> None:
        """Convert a limit with a number."""
        name, unlimited = _LIMITS[setting.key]
        if not setting.value.lstrip("-").isdecimal():
            self._miss(setting, "it is not a number")
            return
        number = int(setting.value)
        if number < 0 or (not number and setting.key not in {"maximum_qos", "max_qos"}):
            number = unlimited
        if setting.key == "message_size_limit":
            self._miss(setting, f"max_packet_size counts topic and properties, too: {number}")
        self._limits[name] = number

    def _log_type(self, setting: Setting) -> None:
        """Lower the level of the log to that of a type."""
        levels = {"error": "error", "warning": "warning", "information": "info"}
        levels |= {"notice": "info", "all": "info", "debug": "debug"}
        order = ("error", "warning", "info", "debug")
        level = levels.get(setting.value, "warning")
        present = self.table.get("log_level", "error")
        self.table["log_level"] = max(level, present, key=order.index)

    # --- listeners ---

    def _listener(self, section: _Section) -> dict[str, Any]:
        """Return the table of a listener."""
        table: dict[str, Any] = {}
        has_tls = section.get("certfile") != ""
        protocol = section.get("protocol") or "mqtt"
        scheme = {"mqtt": "tls://" if has_tls else "", "mqtts": "tls://"}.get(protocol)
        if scheme is None:
            scheme = "wss://" if has_tls else "ws://"
        port, *host = section.words
        if port == "0" and host:
            table["address"] = f"unix:{host[0]}"
        else:
            name = host[0] if host else "0.0.0.0"  # noqa: S104  (as mosquitto does)
            name = f"[{name}]" if ":" in name else name
            table["address"] = f"{scheme}{name}:{port}"
        own: dict[str, Any] = {}
        for setting in section.settings:
            self._listener_setting(section, setting, table)
        if self._is_split:
            self._access(section, table, own)
            table["anonymous"] = bool(own.get("anonymous"))
            table.setdefault("users", [])
            table.setdefault("acl", [])
        return table

    def _listener_setting(
        self, section: _Section, setting: Setting, table: dict[str, Any]
    ) -> None:
        """Convert a setting of a listener."""
        key, value = setting.key, setting.value
        is_on, has_certificates = value.lower() == "true", section.is_on("require_certificate")
        if key in _FILES:
            if key != "cafile" or has_certificates:
                table[_FILES[key]] = self._path(value)
        elif key in _SWITCHES:
            name, on = _SWITCHES[key]
            table |= {name: on} if is_on else {}
        elif key == "use_identity_as_username":
            if not is_on and has_certificates:
                self._miss(setting, "a certificate's common name is always the user")
        elif key in _CONVERTED and (key not in _LIMITS or value in {"0", "1", "2"}):
            name, convert = _CONVERTED[key]
            table[name] = convert(value)
        elif key in _LIMITS:
            self._limit(setting)
            if len(self._listeners) > 1:
                self._miss(setting, "the limit now applies to all listeners")
        elif key not in {"protocol", *_ACCESS_KEYS}:
            self._rest(setting)

    def _path(self, text: str) -> str:
        """Return a path of mosquitto's file, which is relative to its folder."""
        path = Path(text)
        return str(path if path.is_absolute() else (self._folder / path).resolve())

    # --- users and rules ---

    def _access(self, section: _Section, table: dict[str, Any], auth: dict[str, Any]) -> None:
        """Convert users, topic rules and the admission of clients without a name."""
        for setting in section.settings:
            if setting.key == "allow_zero_length_clientid":
                self._limits[setting.key] = setting.value.lower() == "true"
            elif setting.key in {"plugin", "auth_plugin", "psk_file"}:
                self._miss(setting, "write a function, and name it in [hooks] connect")
            elif setting.key == "auto_id_prefix" and setting.value != "auto-":
                self._miss(setting, "chosen client ids begin with 'auto-'")
        passwords = self._passwords or self._named(section, "password_file")
        acl = self._acl or self._named(section, "acl_file")
        if section.get("allow_anonymous"):
            auth["anonymous"] = section.is_on("allow_anonymous")
        if passwords is not None:
            table["users"] = list(self._users(passwords))
        if acl is not None:
            table["acl"] = list(self._rules(acl))
            # mosquitto grants every subscription, and checks each message.
            self._auth["check_filters"] = False

    def _named(self, section: _Section, key: str) -> Path | None:
        """Return the path of a file that a section names."""
        value = section.get(key)
        return Path(self._path(value)) if value else None

    def _users(self, path: Path) -> Iterator[dict[str, Any]]:
        """Yield the users of a file of passwords."""
        for number, line in enumerate(_lines(path), 1):
            name, colon, stored = line.strip().partition(":")
            if not name or name.startswith("#"):
                continue
            try:
                MosquittoHash.parse(stored)
            except ValueError:
                place, text = f"{path.name}:{number}", f"{name}:…" if colon else name
                reason = f"it is not hashed; run callboard mqtt user add {name} FILE"
                self._unconverted.append(Unconverted(place, text, reason))
            else:
                yield {"name": name, "password": stored}

    def _rules(self, path: Path) -> Iterator[dict[str, Any]]:
        """Yield the topic rules of a file, by user in the order of the file."""
        entries: dict[str, dict[str, list[str]]] = {}
        user = ""  # clients without a name, until the first line `user`
        for number, line in enumerate(_lines(path), 1):
            kind, _, rest = line.strip().partition(" ")
            rest = rest.strip()
            if not kind or kind.startswith("#"):
                continue
            if kind == "user":
                user = rest
                continue
            owner = "*" if kind == "pattern" else user
            verb, _, topic_filter = rest.partition(" ")
            if verb not in {"read", "write", "readwrite", "deny"}:
                verb, topic_filter = "readwrite", rest
            topic_filter = topic_filter.strip()
            place = f"{path.name}:{number}"
            try:
                if kind not in {"topic", "pattern"}:
                    message = "it is not a rule"
                    raise ValueError(message)
                parse_rule(f"{kind} {verb} {topic_filter}", denies=verb == "deny")
            except ValueError as error:
                self._unconverted.append(Unconverted(place, line.strip(), str(error)))
                continue
            entry = entries.setdefault(owner, {"allow": [], "deny": []})
            if verb == "deny":
                entry["deny"].append(topic_filter)
            else:
                entry["allow"].append(f"{verb} {topic_filter}")
        for owner, lists in entries.items():
            yield {"user": owner, **{key: rules for key, rules in lists.items() if rules}}

    # --- bridges ---

    def _bridge(self, section: _Section) -> dict[str, Any]:
        """Return the table of a bridge; empty if it cannot be converted."""
        name = section.words[0]
        addresses = (section.get("address", "addresses")).split()
        if not addresses:
            self._miss(Setting(section.place, "connection", name), "it has no address")
            return {}
        is_tls = any(section.get(f"bridge_{key}") for key in ("cafile", "capath", "certfile"))
        places = [self._bridge_address(address, is_tls=is_tls) for address in addresses]
        client_id = section.get("remote_clientid", "clientid")
        table: dict[str, Any] = {
            "address": places[0],
            "client_id": client_id or f"{socket.gethostname()}.{name}",
            "version": "5" if section.get("bridge_protocol_version") == "mqttv50" else "3.1.1",
        }
        if places[1:]:
            table["fallbacks"] = places[1:]
        topics: list[dict[str, Any]] = []
        for setting in section.settings:
            if setting.key == "topic":
                topics += self._bridge_topic(setting)
            else:
                self._bridge_setting(setting, table)
        if table["version"] != "5" and _goes_round(topics):
            table["version"] = "5"
            connection = Setting(section.place, "connection", name)
            self._miss(
                connection, "its topics go both ways, which needs MQTT 5 at the other broker"
            )
        if not topics:
            self._miss(Setting(section.place, "connection", name), "it has no topic")
            return {}
        return {**table, "topics": topics}

    @staticmethod
    def _bridge_address(text: str, *, is_tls: bool) -> str:
        """Return the address of a broker; the port may be missing."""
        host, colon, port = text.rpartition(":")
        if not colon:
            host, port = text, "8883" if is_tls else "1883"
        return f"{'tls://' if is_tls else ''}{host}:{port}"

    def _bridge_setting(self, setting: Setting, table: dict[str, Any]) -> None:
        """Convert a setting of a bridge."""
        key, value = setting.key, setting.value
        convert = _BRIDGE_SETTINGS.get(key)
        files = {"bridge_cafile": "authority", "bridge_certfile": "certificate"}
        files |= {"bridge_keyfile": "key"}
        if convert is not None:
            name, parse = convert
            table[name] = parse(value)
        elif key in files:
            table[files[key]] = self._path(value)
        elif key == "restart_timeout":
            table["reconnect_delay"] = float(value.split()[0])
        elif key == "round_robin" and value.lower() == "false":
            return
        elif key not in _BRIDGE_NAMES:
            self._rest(setting)

    def _bridge_topic(self, setting: Setting) -> list[dict[str, Any]]:
        """Return the table of a line `topic PATTERN [DIRECTION [QOS [LOCAL [REMOTE]]]]`."""
        words = ["" if word == '""' else word for word in setting.value.split()]
        topic_filter, direction, qos, local, remote = [*words, "", "", "", ""][:5]
        table: dict[str, Any] = {
            "filter": topic_filter,
            "direction": direction or "out",
            "qos": int(qos or 0),
        }
        table |= {"local_prefix": local} if local else {}
        table |= {"remote_prefix": remote} if remote else {}
        try:
            for prefix in (local, remote):
                check_filter(prefix + topic_filter)
        except ValueError as error:
            self._miss(setting, str(error))
            return []
        return [table]


_BRIDGE_SETTINGS: Final[Mapping[str, tuple[str, Callable[[str], Any]]]] = {
    "remote_username": ("username", str),
    "username": ("username", str),
    "remote_password": ("password", str),
    "password": ("password", str),
    "keepalive_interval": ("keep_alive", int),
    "notifications": ("notifications", lambda value: value.lower() == "true"),
    "bridge_max_packet_size": ("packet_size", int),
    "bridge_outgoing_retain": ("retain", lambda value: value.lower() == "true"),
}


#: Settings that `_bridge` itself converts.
_BRIDGE_NAMES: Final = frozenset(
    ("address", "addresses", "bridge_protocol_version", "remote_clientid", "clientid")
)


def _goes_round(topics: list[dict[str, Any]]) -> bool:
    """Return whether a broker of 3.1.1 would return the bridge's own messages."""
    sides = [
        (topic["direction"], topic.get("remote_prefix", "") + topic["filter"])
        for topic in topics
    ]
    return any(
        overlap(outward, inward)
        for direction, outward in sides
        for other, inward in sides
        if direction != "in" and other != "out"
    )


# --- TOML ---


def _is_table(value: Any) -> bool:
    """Return whether a value is written as tables."""
    return isinstance(value, dict) or (
        isinstance(value, list) and bool(value) and isinstance(value[0], dict)
    )


def toml_text(text: str) -> str:
    """Return a text as a TOML string."""
    # TOML has no surrogate pairs, and takes no DEL as it is (TOML 1.0, "String").
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _value(value: Any) -> str:
    """Return a value as TOML."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, str):
        return toml_text(value)
    return str(value)


def _toml(table: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Yield the lines of a table: its values first, then the tables in it."""
    for key, value in table.items():
        if not _is_table(value) and not (path == "" and value == []):
            yield f"{key} = {_value(value)}"
    for key, value in table.items():
        if isinstance(value, dict) and value:
            yield from ("", f"[{path}{key}]", *_toml(value, f"{path}{key}."))
        elif _is_table(value):
            for entry in value:
                yield from ("", f"[[{path}{key}]]", *_toml(entry, f"{path}{key}."))
