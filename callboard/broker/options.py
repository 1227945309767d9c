"""Configuration of an endpoint: options, TLS files, `broker.conf` and the environment.

The file in the current folder overrides the program's settings, and the environment overrides
both, as in Broker: an operator can change a program that another person wrote. `_KEYS` lists
the keys and variables; the page on topics describes them. A timespan is written `500ms` or
`2s`; lists in the environment are separated by commas.
"""

import copy
import inspect
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Final, get_origin

from callboard.broker.conf import parse_conf
from callboard.model.errors import InvalidData, InvalidOption
from callboard.model.timespan import Timespan
from callboard.support.files.user_file import read_user_file
from callboard.topics.machine.peer_buffer import PEER_POLICIES

log = logging.getLogger("callboard.broker")

#: Most links that a message may cross, as in Broker 1.4.
TTL: Final = 20

#: Shortest interval of messages with metrics, in seconds: each message contains all metrics.
SHORTEST_EXPORT: Final = 0.01

VERBOSITIES: Final = {
    "quiet": None,
    "critical": logging.CRITICAL,
    "error": logging.ERROR,
    "warning": logging.WARNING,
    "info": logging.INFO,
    "verbose": logging.INFO,
    "debug": logging.DEBUG,
    "trace": logging.DEBUG,
}


LOG_FORMAT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"


_ALLOWED: Final[dict[str, range | tuple[str, ...]]] = {
    "ttl": range(1, 65_536),
    "peer_buffer_size": range(1, 1 << 24),
    "peer_overflow_policy": PEER_POLICIES,
    "metrics_port": range(-1, 65_536),
}


class _Typed:
    """Base class that refuses unknown attributes and values of a wrong type."""

    _types: ClassVar[Mapping[str, type]] = {}

    def __init_subclass__(cls) -> None:
        """Read the options and their types from the annotations."""
        hints: dict[str, Any] = inspect.get_annotations(cls)
        cls._types = {name: get_origin(hint) or hint for name, hint in hints.items()}

    def __setattr__(self, name: str, value: Any) -> None:
        kind = self._types.get(name)
        if kind is None:
            names = ", ".join(self._types)
            msg = f"{type(self).__name__} has no option {name!r}; use one of {names}"
            raise AttributeError(msg)
        if type(value) is not kind:
            msg = f"{type(self).__name__}.{name} must be {kind.__name__}, not {value!r}"
            raise InvalidOption(msg)
        if isinstance(value, float) and not value >= SHORTEST_EXPORT:
            label = f"{type(self).__name__}.{name}"
            msg = f"{label} must be at least {SHORTEST_EXPORT:g} s, not {value}"
            raise InvalidOption(msg)
        allowed = _ALLOWED.get(name)
        if allowed is not None and value not in allowed:
            choices = (
                f"{allowed[0]} to {allowed[-1]}"
                if isinstance(allowed, range)
                else ", ".join(allowed)
            )
            msg = f"{type(self).__name__}.{name} must be one of {choices}, not {value!r}"
            raise InvalidOption(msg)
        super().__setattr__(name, value)


class BrokerOptions(_Typed):
    """Options of an endpoint.

    Attributes:
        disable_ssl: do not encrypt links. By default they are encrypted, even without
            certificates.
        forward: whether messages between other endpoints may pass through this one.
        ttl: links that a message of this endpoint may cross.
        ignore_broker_conf: ignore `broker.conf` and the environment.
        use_real_time: stores use the clock's time; a simulation has its own.
        peer_buffer_size: messages that may wait for a peer that does not read.
        peer_overflow_policy: the action above that: `disconnect`, `drop_newest`, `drop_oldest`.
        metrics_port: port for metrics and the status over HTTP; 0 picks a free port, and -1
            turns it off.
        metrics_address: local address of that port; its clients are not authenticated.
        metrics_hosts: host names for that port, besides addresses, `localhost` and the name of
            the machine; `*` for all.
        metrics_endpoint_name: name of this endpoint in both; by default that of its node.
        metrics_export_topic: topic on which the metrics are also published; "" for none.
        metrics_export_interval: seconds between two such messages.
        metrics_export_prefixes: only metrics whose names have one of these prefixes; () for
            all.
        metrics_import_topics: topics with metrics of other endpoints, to be served as well.
        discovered_first: report a direct peering as in Broker 2, with `EndpointDiscovered`
            before `PeerAdded`. By default, as in Broker 1.4, only indirect endpoints are
            discovered.
        console_verbosity: level of the log on standard error, one of `VERBOSITIES`; "" leaves
            logging unchanged.
        file_verbosity: the same for the file `broker.log` in the current folder.
        wire: default protocol of `peer` and `listen`: `native` for endpoints of nodes, or a
            protocol of Zeek, such as `zeek-2`.
    """

    disable_ssl: bool = False
    forward: bool = True
    ttl: int = TTL
    ignore_broker_conf: bool = False
    use_real_time: bool = True
    peer_buffer_size: int = 2048
    peer_overflow_policy: str = "disconnect"
    metrics_port: int = -1
    metrics_address: str = "127.0.0.1"
    metrics_hosts: tuple[str, ...] = ()
    metrics_endpoint_name: str = ""
    metrics_export_topic: str = ""
    metrics_export_interval: float = 1.0
    metrics_export_prefixes: tuple[str, ...] = ()
    metrics_import_topics: tuple[str, ...] = ()
    discovered_first: bool = False
    console_verbosity: str = ""
    file_verbosity: str = ""
    wire: str = "native"

    @property
    def disable_forwarding(self) -> bool:
        """The opposite of `forward`, as in Broker 2."""
        return not self.forward


class Configuration(_Typed):
    """Options, and the TLS files (PEM format).

    Attributes:
        options: the options of the endpoint.
        openssl_certificate: our certificate, and those between it and the authority.
        openssl_key: its private key.
        openssl_passphrase: the password of that key.
        openssl_cafile: certificates of the authorities that may sign a peer's certificate.
        openssl_capath: a folder with such certificates, named as required by OpenSSL.
        openssl_crlfile: revocation lists of all of these; Broker has no such option.
        max_threads: accepted for programs that set it, without effect: a node starts threads as
            handlers need them.
    """

    options: BrokerOptions
    openssl_certificate: str = ""
    openssl_key: str = ""
    openssl_passphrase: str = ""
    openssl_cafile: str = ""
    openssl_capath: str = ""
    openssl_crlfile: str = ""
    max_threads: int = 0

    def __init__(self, options: BrokerOptions | None = None) -> None:
        self.options = BrokerOptions() if options is None else options

    @property
    def has_certificates(self) -> bool:
        """Whether peers must present a certificate."""
        return bool(self.openssl_cafile or self.openssl_capath)


def set_up_logging(options: BrokerOptions) -> None:
    """Set up logging by the options; existing log handlers are kept.

    Raises:
        InvalidOption: a verbosity is unknown.
        OSError: the file cannot be written.
    """
    for name, make in _LOGS.items():
        text = getattr(options, name).lower()
        if not text:
            continue
        if text not in VERBOSITIES:
            msg = f"{name}={text!r} is not a verbosity; use one of {', '.join(VERBOSITIES)}"
            raise InvalidOption(msg)
        level = VERBOSITIES[text]
        root = logging.getLogger("callboard")
        label = f"broker {name}"
        if level is None or any(handler.name == label for handler in root.handlers):
            continue
        handler = make()
        handler.name = label
        handler.setLevel(level)
        handler.setFormatter(logging.Formatter(LOG_FORMAT))
        root.addHandler(handler)
        if root.getEffectiveLevel() > level:
            root.setLevel(level)


_LOGS: Final[dict[str, Callable[[], logging.Handler]]] = {
    "console_verbosity": logging.StreamHandler,
    "file_verbosity": lambda: logging.FileHandler("broker.log", delay=True),
}


FILE_NAME: Final = "broker.conf"

#: Largest `broker.conf` in bytes; a larger file is not one.
FILE_LIMIT: Final = 1 << 20


#: Options by their keys in the file.
_KEYS: Final = {
    "broker.disable-ssl": "disable_ssl",
    "broker.forward": "forward",
    "broker.ttl": "ttl",
    "broker.peer-buffer-size": "peer_buffer_size",
    "broker.peer-overflow-policy": "peer_overflow_policy",
    "broker.metrics.port": "metrics_port",
    "broker.metrics.address": "metrics_address",
    "broker.metrics.hosts": "metrics_hosts",
    "broker.metrics.endpoint-name": "metrics_endpoint_name",
    "broker.metrics.export.topic": "metrics_export_topic",
    "broker.metrics.export.interval": "metrics_export_interval",
    "broker.metrics.export.prefixes": "metrics_export_prefixes",
    "broker.metrics.import.topics": "metrics_import_topics",
    "broker.wire": "wire",
    "caf.logger.console.verbosity": "console_verbosity",
    "caf.logger.file.verbosity": "file_verbosity",
}

#: Options by the variables that set them.
_VARIABLES: Final = {
    f"BROKER_{option.upper()}": option
    for option in _KEYS.values()
    if option.startswith("metrics_") or option.endswith("_verbosity") or option == "wire"
}

_OPPOSITE: Final = "broker.disable-forwarding"


def effective_options(
    options: BrokerOptions, environment: Mapping[str, str], folder: Path
) -> BrokerOptions:
    """Return the options in effect; a copy, unless the program ignores the file.

    Args:
        options: the program's options; with `ignore_broker_conf` nothing else counts.
        environment: variables.
        folder: the folder in which `broker.conf` may be.

    Raises:
        InvalidOption: file or environment contain an invalid value.
        OSError: the file cannot be read.
    """
    if options.ignore_broker_conf:
        return options
    effective = copy.copy(options)
    path = folder / FILE_NAME
    if path.is_file():
        try:
            _apply_file(effective, path)
        except InvalidOption as error:
            msg = f"{path}: {error}"
            raise InvalidOption(msg) from None
    for variable, option in _VARIABLES.items():
        if text := environment.get(variable, ""):
            _set(effective, option, text, f"{variable}={text!r}")
    return effective


def _apply_file(options: BrokerOptions, path: Path) -> None:
    try:
        text = read_user_file(path, FILE_LIMIT).decode()
    except OSError as error:
        msg = str(error.strerror)
        raise InvalidOption(msg) from None
    except UnicodeDecodeError as error:
        msg = f"the file is not UTF-8: {error}"
        raise InvalidOption(msg) from None
    for key, (value, line) in parse_conf(text).items():
        location = f"line {line}: {key} = {value!r}"
        if key == _OPPOSITE:
            is_off = _converted(bool, value, location)
            options.forward = not is_off
        elif key in _KEYS:
            _set(options, _KEYS[key], value, location)
        elif key.startswith("broker."):
            log.warning("%s: line %d: %s is unknown and has no effect", path, line, key)


def _set(
    options: BrokerOptions, name: str, value: str | tuple[str, ...], location: str
) -> None:
    """Set an option to the value of a text.

    Raises:
        InvalidOption: the text is invalid for the type of the option.
    """
    converted = _converted(type(getattr(options, name)), value, location)
    try:
        setattr(options, name, converted)
    except InvalidOption as error:
        msg = f"{location}: {error}"
        raise InvalidOption(msg) from None


def _converted(kind: type, value: str | tuple[str, ...], location: str) -> Any:
    read, expected = _TEXT_FORMS[kind]
    if isinstance(value, str):
        result = read(value)
    else:
        result = value if kind is tuple else None
    if result is None:
        msg = f"{location} is not a {expected}"
        raise InvalidOption(msg)
    return result


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.removeprefix("-").isdecimal() else None


def _seconds(text: str) -> float | None:
    try:
        return Timespan.parse(text).total_seconds()
    except InvalidData:
        return None


def _texts(text: str) -> tuple[str, ...]:
    return tuple(filter(None, map(str.strip, text.split(","))))


#: Parser of each type (None for an invalid text), and the description of a valid text.
_TEXT_FORMS: Final[dict[type, tuple[Callable[[str], Any], str]]] = {
    bool: ({"true": True, "false": False}.get, "truth value (true or false)"),
    int: (_number, "number"),
    float: (_seconds, "timespan, such as 500ms or 2s"),
    str: (str, "text"),
    tuple: (_texts, "list of texts"),
}
