"""How an endpoint is set up: options, the files of TLS, `broker.conf` and the environment.

The file in the current folder stands above what the program set, and the environment above
both, as in Broker: an operator can change a program that was built by another person. Which
keys and variables there are stands in `_KEYS`, and for users in the page on topics. A timespan
is written `500ms` or `2s`; lists have commas between their texts in the environment.
"""

import copy
import inspect
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Final, get_origin

from callboard.broker.conf import parse_conf
from callboard.endpoint.machine.peer_buffer import OverflowPolicy
from callboard.model.errors import InvalidData, InvalidOption
from callboard.model.timespan import Timespan
from callboard.support.named_file import read_named

log = logging.getLogger("callboard.broker")

#: Links that a message may cross, as in Broker 1.4.
TTL: Final = 20

#: Seconds between two messages with metrics, at least: each holds all of them.
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
    "peer_overflow_policy": tuple(OverflowPolicy),
    "metrics_port": range(-1, 65_536),
}


class _Typed:
    """Refuses unknown attributes and values of another type when they are set."""

    _types: ClassVar[Mapping[str, type]] = {}

    def __init_subclass__(cls) -> None:
        """Take the options and their types from the annotations."""
        hints: dict[str, Any] = inspect.get_annotations(cls)
        cls._types = {name: get_origin(hint) or hint for name, hint in hints.items()}

    def __setattr__(self, name: str, value: Any) -> None:
        kind = self._types.get(name)
        if kind is None:
            known = ", ".join(self._types)
            msg = f"{type(self).__name__} has no option {name!r}; it has {known}"
            raise AttributeError(msg)
        if type(value) is not kind:
            msg = f"{type(self).__name__}.{name} is {kind.__name__}, not {value!r}"
            raise InvalidOption(msg)
        if isinstance(value, float) and not value >= SHORTEST_EXPORT:
            msg = f"{type(self).__name__}.{name} is at least {SHORTEST_EXPORT:g} s, not {value}"
            raise InvalidOption(msg)
        allowed = _ALLOWED.get(name)
        if allowed is not None and value not in allowed:
            shown = (
                f"{allowed[0]} to {allowed[-1]}"
                if isinstance(allowed, range)
                else ", ".join(allowed)
            )
            msg = f"{type(self).__name__}.{name} is one of {shown}, not {value!r}"
            raise InvalidOption(msg)
        super().__setattr__(name, value)


class BrokerOptions(_Typed):
    """How an endpoint takes part in topics.

    Attributes:
        disable_ssl: links are not encrypted. By default they are, also without certificates.
        forward: whether messages between others may pass through this endpoint.
        ttl: links that a message of this endpoint may cross.
        ignore_broker_conf: neither `broker.conf` nor the environment changes anything.
        use_real_time: the time of stores is the clock's; a simulation has its own.
        peer_buffer_size: messages that may wait for a peer which does not read.
        peer_overflow_policy: what happens then: `disconnect`, `drop_newest`, `drop_oldest`.
        metrics_port: where metrics and the status are served over HTTP; 0 picks a port, and
            with -1 they are not served.
        metrics_address: the local address of that port; whoever reaches it may ask.
        metrics_hosts: names by which that port is reached, beside addresses, `localhost` and
            the name of the machine; `*` for all.
        metrics_endpoint_name: what both call this endpoint; by default the name of its node.
        metrics_export_topic: where the metrics are published as well; "" for nowhere.
        metrics_export_interval: seconds between two such messages.
        metrics_export_prefixes: only metrics whose names begin so; () for all.
        metrics_import_topics: topics of others' metrics, which are shown beside our own.
        discovered_first: a direct peering is told as in Broker 2, `EndpointDiscovered` and then
            `PeerAdded`. By default, as in Broker 1.4, only endpoints behind others are
            discovered.
        console_verbosity: what is logged to standard error, one of `VERBOSITIES`; "" leaves
            logging as it is.
        file_verbosity: the same for the file `broker.log` in the current folder.
        wire: what `peer` and `listen` speak that do not say so: `native` with endpoints of
            nodes, or the wire of a Zeek, as `zeek-2`.
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
        """The opposite of `forward`, as Broker 2 has it."""
        return not self.forward


class Configuration(_Typed):
    """Options, and the files of TLS (PEM format).

    Attributes:
        options: the options of the endpoint.
        openssl_certificate: our own certificate, with those between it and the authority.
        openssl_key: its private key.
        openssl_passphrase: the password of that key.
        openssl_cafile: certificates of those who may sign a peer's.
        openssl_capath: a folder with such certificates, named as OpenSSL wants it.
        openssl_crlfile: revocation lists of all of these; Broker has no such option.
        max_threads: taken for programs that set it, without effect: a node brings threads as
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
        """Whether peers have to show who they are."""
        return bool(self.openssl_cafile or self.openssl_capath)


def set_up_logging(options: BrokerOptions) -> None:
    """Log as options want it; what is logged already goes on.

    Raises:
        InvalidOption: a verbosity that is not known.
        OSError: the file cannot be written.
    """
    for name, make in _LOGS.items():
        text = getattr(options, name).lower()
        if not text:
            continue
        if text not in VERBOSITIES:
            msg = f"{name}={text!r} is no verbosity; choose one of {', '.join(VERBOSITIES)}"
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

#: Bytes of the file: what is larger is another one.
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
    """Return the options that hold; a copy, where the program asks for nothing else.

    Args:
        options: what the program set; with `ignore_broker_conf` that is all there is.
        environment: variables.
        folder: where `broker.conf` may be.

    Raises:
        InvalidOption: file or environment say what cannot be.
        OSError: the file is there and cannot be read.
    """
    if options.ignore_broker_conf:
        return options
    found = copy.copy(options)
    path = folder / FILE_NAME
    if path.is_file():
        try:
            _take_file(found, path)
        except InvalidOption as error:
            msg = f"{path}: {error}"
            raise InvalidOption(msg) from None
    for variable, option in _VARIABLES.items():
        if text := environment.get(variable, ""):
            _set(found, option, text, f"{variable}={text!r}")
    return found


def _take_file(options: BrokerOptions, path: Path) -> None:
    try:
        text = read_named(path, FILE_LIMIT).decode()
    except OSError as error:
        msg = str(error.strerror)
        raise InvalidOption(msg) from None
    except UnicodeDecodeError as error:
        msg = f"it is no text in UTF-8: {error}"
        raise InvalidOption(msg) from None
    for key, (value, line) in parse_conf(text).items():
        where = f"line {line}: {key} = {value!r}"
        if key == _OPPOSITE:
            is_off = _converted(bool, value, where)
            options.forward = not is_off
        elif key in _KEYS:
            _set(options, _KEYS[key], value, where)
        elif key.startswith("broker."):
            log.warning("%s: line %d: %s is not known and has no effect", path, line, key)


def _set(options: BrokerOptions, name: str, value: str | tuple[str, ...], where: str) -> None:
    """Set an option to what a text means for its type.

    Raises:
        InvalidOption: nothing.
    """
    converted = _converted(type(getattr(options, name)), value, where)
    try:
        setattr(options, name, converted)
    except InvalidOption as error:
        msg = f"{where}: {error}"
        raise InvalidOption(msg) from None


def _converted(kind: type, value: str | tuple[str, ...], where: str) -> Any:
    read, wanted = _TEXT_FORMS[kind]
    if isinstance(value, str):
        found = read(value)
    else:
        found = value if kind is tuple else None
    if found is None:
        msg = f"{where} is no {wanted}"
        raise InvalidOption(msg)
    return found


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.removeprefix("-").isdecimal() else None


def _seconds(text: str) -> float | None:
    try:
        return Timespan.parse(text).total_seconds()
    except InvalidData:
        return None


def _texts(text: str) -> tuple[str, ...]:
    return tuple(filter(None, map(str.strip, text.split(","))))


#: What a text means as a value of each type (None for nothing), and what it should have been.
_TEXT_FORMS: Final[dict[type, tuple[Callable[[str], Any], str]]] = {
    bool: ({"true": True, "false": False}.get, "true or false"),
    int: (_number, "number"),
    float: (_seconds, "timespan, such as 500ms or 2s"),
    str: (str, "text"),
    tuple: (_texts, "list of texts"),
}
