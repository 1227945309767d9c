"""What an endpoint goes by: a program's options, `broker.conf`, the environment.

The file in the current folder stands above what the program set, and the environment above
both, as in Broker: an operator can change a program that was built by somebody else.

What is what stands in `_SETTINGS`, and for users in the page on topics. A timespan is written
`500ms` or `2s`; lists have commas between their texts in the environment.
"""

import copy
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from callboard.broker.conf import parse_conf
from callboard.broker.options import BrokerOptions
from callboard.endpoint.errors import InvalidData, InvalidOption
from callboard.endpoint.timespan import Timespan

__all__ = ["FILE_NAME", "effective_options"]

log = logging.getLogger("callboard.broker")

FILE_NAME: Final = "broker.conf"

FILE_LIMIT: Final = 1 << 20
"""Bytes of the file: what is larger is another one."""


class _Setting(NamedTuple):
    option: str
    key: str
    variable: str = ""


_SETTINGS: Final = (
    _Setting("disable_ssl", "broker.disable-ssl"),
    _Setting("forward", "broker.forward"),
    _Setting("ttl", "broker.ttl"),
    _Setting("peer_buffer_size", "broker.peer-buffer-size"),
    _Setting("peer_overflow_policy", "broker.peer-overflow-policy"),
    _Setting("metrics_port", "broker.metrics.port", "BROKER_METRICS_PORT"),
    _Setting("metrics_address", "broker.metrics.address", "BROKER_METRICS_ADDRESS"),
    _Setting(
        "metrics_endpoint_name",
        "broker.metrics.endpoint-name",
        "BROKER_METRICS_ENDPOINT_NAME",
    ),
    _Setting(
        "metrics_export_topic", "broker.metrics.export.topic", "BROKER_METRICS_EXPORT_TOPIC"
    ),
    _Setting(
        "metrics_export_interval",
        "broker.metrics.export.interval",
        "BROKER_METRICS_EXPORT_INTERVAL",
    ),
    _Setting(
        "metrics_export_prefixes",
        "broker.metrics.export.prefixes",
        "BROKER_METRICS_EXPORT_PREFIXES",
    ),
    _Setting(
        "metrics_import_topics", "broker.metrics.import.topics", "BROKER_METRICS_IMPORT_TOPICS"
    ),
    _Setting("console_verbosity", "caf.logger.console.verbosity", "BROKER_CONSOLE_VERBOSITY"),
    _Setting("file_verbosity", "caf.logger.file.verbosity", "BROKER_FILE_VERBOSITY"),
)
_BY_KEY: Final = {setting.key: setting for setting in _SETTINGS}
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
    for setting in _SETTINGS:
        text = environment.get(setting.variable, "") if setting.variable else ""
        if text:
            _set(found, setting.option, text, f"{setting.variable}={text!r}")
    return found


def _take_file(options: BrokerOptions, path: Path) -> None:
    data = path.read_bytes()
    if len(data) > FILE_LIMIT:
        msg = f"{len(data):,} bytes exceed the limit of {FILE_LIMIT:,}"
        raise InvalidOption(msg)
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        msg = f"it is no text in UTF-8: {error}"
        raise InvalidOption(msg) from None
    for key, (value, line) in parse_conf(text).items():
        where = f"line {line}: {key} = {value!r}"
        if key == _OPPOSITE:
            is_off = _converted(bool, value, where)
            options.forward = not is_off
        elif key in _BY_KEY:
            _set(options, _BY_KEY[key].option, value, where)
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
    if isinstance(value, str):
        found = _READ[kind](value)
    else:
        found = value if kind is tuple else None
    if found is None:
        msg = f"{where} is no {_WORDS[kind]}"
        raise InvalidOption(msg)
    return found


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.removeprefix("-").isdecimal() else None


def _seconds(text: str) -> float | None:
    try:
        return Timespan.parse(text).total_seconds()
    except InvalidData:
        return None


#: What a text means as a value of each type; None for nothing.
_READ: Final[dict[type, Callable[[str], Any]]] = {
    bool: {"true": True, "false": False}.get,
    int: _number,
    float: _seconds,
    str: str,
    tuple: lambda text: tuple(filter(None, map(str.strip, text.split(",")))),
}

_WORDS: Final = {
    bool: "true or false",
    int: "number",
    float: "timespan, such as 500ms or 2s",
    str: "text",
    tuple: "list of texts",
}
