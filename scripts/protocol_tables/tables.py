"""The kinds of tables that pages have, each made from the code as Markdown."""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from enum import Enum
from typing import Any, Final

from callboard.basp.registry import DEFAULT_REGISTRY
from callboard.mqtt.wire import codec
from callboard.mqtt.wire.packet import PacketType
from callboard.mqtt.wire.properties import Place, Properties
from callboard.mqtt.wire.reason_code import CODES, ReasonCode
from callboard.store.machine.command import FIELDS, Command
from scripts.protocol_tables.layout import layout_text
from scripts.protocol_tables.source import (
    TableError,
    attribute,
    comment_of,
    module_of,
    summary,
)

Options = dict[str, str]


def _markdown(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _words(lines: list[str]) -> dict[str, str]:
    """Return names and meanings of lines `name | meaning`; the meaning may be missing."""
    pairs = (line.partition(" | ") for line in lines)
    return {name.strip(): meaning.strip() for name, _, meaning in pairs}


def codes_text(target: str, lines: list[str], _: Options) -> str:
    """Return the numbers and names of an enum, or of a class whose attributes are numbers.

    Raises:
        TableError: the page says something of a name that is not there, or lacks one.
    """
    cls = attribute(target)
    values = (
        {name: member.value for name, member in cls.__members__.items()}
        if issubclass(cls, Enum)
        else {name: value for name, value in vars(cls).items() if name.isupper()}
    )
    said = _words(lines)
    if said and said.keys() != values.keys():
        msg = f"{target}: the page and the code differ in {sorted(said.keys() ^ values.keys())}"
        raise TableError(msg)
    rows = [
        [_shown(value), f"`{name.lower()}`", *([said[name]] if said else [])]
        for name, value in values.items()
    ]
    return _markdown(["number", "name", *(["meaning"] if said else [])], rows)


def constants_text(target: str, lines: list[str], _: Options) -> str:
    """Return constants of a module with their values; a meaning is the comment in the code.

    Raises:
        TableError: a constant is not there, or has no meaning.
    """
    module = module_of(target)
    rows = []
    for name, said in _words(lines).items():
        meaning = said or comment_of(module, name)
        if not meaning:
            msg = f"{target}.{name} has no comment, and the page does not describe it"
            raise TableError(msg)
        rows.append([f"`{name}`", _shown(attribute(f"{target}:{name}")), meaning])
    return _markdown(["name", "value", "meaning"], rows)


def _shown(value: Any) -> str:
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, bool) or not isinstance(value, int):
        return f"`{value!r}`" if isinstance(value, bytes | str) else str(value)
    return f"{value:,}" if abs(value) < 1 << 31 else f"`0x{value:x}`"


def messages_text(target: str, lines: list[str], _: Options) -> str:
    """Return the registered messages of a module, or those that the page names.

    Raises:
        TableError: a module has no messages, or the page names one that is not there.
    """
    module, chosen = module_of(target), [line.strip() for line in lines]
    found = {
        cls.__name__: (name, cls)
        for name, kind in DEFAULT_REGISTRY.by_name.items()
        for cls in [kind.cls]
        if cls.__module__ == module.__name__
    }
    if not found or not found.keys() >= set(chosen):
        msg = f"{target} has the messages {sorted(found)}, the page names {chosen}"
        raise TableError(msg)
    kept = [found[name] for name in chosen] if chosen else list(found.values())
    return _markdown(
        ["name on the wire", "fields", "meaning"],
        [[f"`{name}`", _fields_of(cls), _escaped(summary(cls))] for name, cls in kept],
    )


def _fields_of(cls: type) -> str:
    names = getattr(cls, "__dataclass_fields__", None)
    if names is None:
        return ", ".join(f"`{name}`" for name in getattr(cls, "_fields", ()))
    return ", ".join(
        f"`{each.name}`" + ("" if _is_needed(each) else "?") for each in fields(cls)
    )


def _is_needed(each: Any) -> bool:
    return each.default is MISSING and each.default_factory is MISSING


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")


def mqtt_packets_text(_: str, lines: list[str], __: Options) -> str:
    """Return the packets of MQTT: number, first byte, and what the page says of each body.

    Raises:
        TableError: the page lacks a packet.
    """
    said = _words(lines)
    missing = {kind.name for kind in PacketType} ^ said.keys()
    if missing:
        msg = f"packets: the page and the code differ in {sorted(missing)}"
        raise TableError(msg)
    forms: Any = vars(codec)["_FORMS"]
    rows = []
    for kind in PacketType:
        is_publish = kind is PacketType.PUBLISH
        first = "`0x3_`: DUP, QoS, RETAIN" if is_publish else f"`0x{forms[kind].first:02x}`"
        rows.append([str(kind.value), kind.name, first, said[kind.name]])
    return _markdown(["type", "packet", "first byte", "body behind the fixed header"], rows)


_PROPERTY_TYPES: Final = {
    "byte": "byte",
    "two": "two bytes",
    "four": "four bytes",
    "variable": "variable byte integer",
    "string": "string",
    "binary": "binary data",
    "_read_pair": "string pair",
}


def mqtt_properties_text(_: str, __: list[str], ___: Options) -> str:
    """Return the properties of MQTT 5: identifier, name, type, packets."""
    rows = []
    for each in fields(Properties):
        kind = each.metadata["kind"]
        places = [str(place.name) for place in Place if place in kind.places]
        where = "all" if len(places) == len(Place) else ", ".join(places)
        type_name = _PROPERTY_TYPES[kind.type.read.__name__]
        rows.append([f"`0x{kind.identifier:02x}`", f"`{each.name}`", type_name, where])
    return _markdown(["identifier", "property", "type", "packets"], rows)


def mqtt_reasons_text(_: str, __: list[str], ___: Options) -> str:
    """Return the reason codes of MQTT 5, and the packets that may carry each."""
    rows = []
    for code in ReasonCode:
        names = [name for name, each in ReasonCode.__members__.items() if each is code]
        where = [packet for packet, codes in CODES.items() if code in codes]
        named = ", ".join(f"`{name.lower()}`" for name in names)
        rows.append([f"`0x{code:02x}`", named, ", ".join(where)])
    return _markdown(["code", "name", "packets"], rows)


def store_commands_text(_: str, __: list[str], ___: Options) -> str:
    """Return the commands of stores with their fields, as Broker 2.x has them."""
    numbers = {value: name for name, value in vars(Command).items() if name.isupper()}
    rows = [
        [str(number), f"`{numbers[number].lower()}`", ", ".join(f.name.lower() for f in kinds)]
        for number, kinds in FIELDS.items()
    ]
    return _markdown(["number", "command", "fields"], rows)


#: The function that makes the table of each kind, from its target, lines and options.
TABLES: Final[Mapping[str, Callable[[str, list[str], Options], str]]] = {
    "bytes": layout_text,
    "codes": codes_text,
    "constants": constants_text,
    "messages": messages_text,
    "mqtt-packets": mqtt_packets_text,
    "mqtt-properties": mqtt_properties_text,
    "mqtt-reasons": mqtt_reasons_text,
    "store-commands": store_commands_text,
}


def table(kind: str, target: str, lines: list[str], options: Options) -> str:
    """Return a table as Markdown.

    Raises:
        TableError: page and code do not agree.
    """
    return TABLES[kind](target, [line for line in lines if line.strip()], options)
