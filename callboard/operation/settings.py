"""The forms of single settings, and what is said of a text that has another one."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from proxies.address import UNIX, parse_node_address

if TYPE_CHECKING:
    from pydantic import ValidationInfo

_CLASS: Final = re.compile(r"(?:[A-Za-z_][\w.]*:)?[A-Za-z_]\w*")


def parse_host_port(text: str) -> tuple[str, int]:
    """Return host and port of `HOST:PORT`; an IPv6 host may stand in brackets.

    Raises:
        ValueError: the text is something else.
    """
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        msg = f"{text!r} is no HOST:PORT; write it like 127.0.0.1:4222"
        raise ValueError(msg)
    return host.strip("[]"), int(port)


def parse_listen(text: str) -> tuple[str, int]:
    """Return what `node.listen` takes for `HOST:PORT` or `unix:/PATH`.

    Raises:
        ValueError: the text is something else.
    """
    if text.startswith(UNIX):
        parse_node_address(text)
        return text, 0
    return parse_host_port(text)


def check_listen(text: str) -> str:
    """Return a text that is `HOST:PORT` or `unix:/PATH`.

    Raises:
        ValueError: it is something else.
    """
    parse_listen(text)
    return text


def check_host_port(text: str) -> str:
    """Return a text that is `HOST:PORT`.

    Raises:
        ValueError: it is something else.
    """
    parse_host_port(text)
    return text


def check_node_address(text: str) -> str:
    """Return the address of a node.

    Raises:
        InvalidAddress: the text is something else.
    """
    parse_node_address(text)
    return text


def check_class(text: str) -> str:
    """Return the name of a class: `module:Class`, or `Class` of the app's file.

    Raises:
        ValueError: the text is something else.
    """
    if _CLASS.fullmatch(text) is None:
        msg = f"{text!r} names no class; write module:Class, or Class for one of the app's file"
        raise ValueError(msg)
    return text


def find_file(path: Path, info: "ValidationInfo") -> Path:
    """Return the path of a file that is there; a relative one begins at the context's folder.

    Raises:
        ValueError: there is no such file.
    """
    folder: Path = (info.context or {}).get("folder", Path())
    found = folder / path
    if not found.is_file():
        kind = "a Python file" if info.field_name == "app" else "a file that exists"
        msg = f"there is no file {found}; give the path of {kind}"
        raise ValueError(msg)
    return found
