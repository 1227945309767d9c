"""How an endpoint is set up: options, and the files of TLS.

What a file and the environment say about the same is in `callboard.broker.settings`.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from callboard.endpoint.errors import InvalidOption
from callboard.endpoint.peer_buffer import OverflowPolicy

__all__ = ["BrokerOptions", "Configuration", "InvalidOption"]

TTL: Final = 20
"""Links that a message may cross, as in Broker 1.4."""

SHORTEST_EXPORT: Final = 0.01
"""Seconds between two messages with metrics, at least: each holds all of them."""

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

    _types: Mapping[str, type]

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
        metrics_endpoint_name: what both call this endpoint; by default the name of its node.
        metrics_export_topic: where the metrics are published as well; "" for nowhere.
        metrics_export_interval: seconds between two such messages.
        metrics_export_prefixes: only metrics whose names begin so; () for all.
        metrics_import_topics: topics of others' metrics, which are shown beside our own.
        console_verbosity: what is logged to standard error, one of `VERBOSITIES`; "" leaves
            logging as it is.
        file_verbosity: the same for the file `broker.log` in the current folder.
    """

    _types = {
        "disable_ssl": bool,
        "forward": bool,
        "ttl": int,
        "ignore_broker_conf": bool,
        "use_real_time": bool,
        "peer_buffer_size": int,
        "peer_overflow_policy": str,
        "metrics_port": int,
        "metrics_address": str,
        "metrics_endpoint_name": str,
        "metrics_export_topic": str,
        "metrics_export_interval": float,
        "metrics_export_prefixes": tuple,
        "metrics_import_topics": tuple,
        "console_verbosity": str,
        "file_verbosity": str,
    }

    def __init__(self) -> None:
        self.disable_ssl = False
        self.forward = True
        self.ttl = TTL
        self.ignore_broker_conf = False
        self.use_real_time = True
        self.peer_buffer_size = 2048
        self.peer_overflow_policy = "disconnect"
        self.metrics_port = -1
        self.metrics_address = "127.0.0.1"
        self.metrics_endpoint_name = ""
        self.metrics_export_topic = ""
        self.metrics_export_interval = 1.0
        self.metrics_export_prefixes: tuple[str, ...] = ()
        self.metrics_import_topics: tuple[str, ...] = ()
        self.console_verbosity = ""
        self.file_verbosity = ""

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
        max_threads: taken for programs that set it, without effect: a node brings threads as
            handlers need them.
    """

    _types = {
        "options": BrokerOptions,
        "openssl_certificate": str,
        "openssl_key": str,
        "openssl_passphrase": str,
        "openssl_cafile": str,
        "openssl_capath": str,
        "max_threads": int,
    }

    def __init__(self, options: BrokerOptions | None = None) -> None:
        self.options = BrokerOptions() if options is None else options
        self.openssl_certificate = ""
        self.openssl_key = ""
        self.openssl_passphrase = ""
        self.openssl_cafile = ""
        self.openssl_capath = ""
        self.max_threads = 0

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
