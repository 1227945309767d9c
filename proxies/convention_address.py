"""Where the leaders of a convention are: Thespian's 'Convention Address.IPv4'."""

from collections.abc import Iterator
from typing import Any, Final

from actors.errors import InvalidAddress
from proxies.address import Endpoint

DEFAULT_PORT: Final = 1900
"""The port of Thespian's own TCP base."""

LOCAL: Final = "127.0.0.1"


def convention_endpoints(value: Any) -> list[Endpoint]:
    """Read the capability: `host:port`, `(host, port)`, or a list of such.

    Raises:
        InvalidAddress: it has another form.
    """
    return list(_read(value)) if value else []


def endpoint_of(text: str) -> Endpoint:
    """Read `host:port`; without a host it is this machine.

    Raises:
        InvalidAddress: the port is no number.
    """
    host, _, port = text.rpartition(":") if ":" in text else (text, "", "")
    try:
        return _host(host), int(port or DEFAULT_PORT)
    except ValueError:
        msg = f"{text!r} is no HOST:PORT of a system"
        raise InvalidAddress(msg) from None


def _read(value: Any) -> Iterator[Endpoint]:
    if isinstance(value, str):
        yield endpoint_of(value)
    elif _is_pair(value):
        yield _host(value[0]), int(value[1])
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _read(each)
    else:
        msg = f"'Convention Address.IPv4' is {value!r}; give 'host:port', a pair or a list"
        raise InvalidAddress(msg)


def _is_pair(value: Any) -> bool:
    return (
        isinstance(value, list | tuple)
        and len(value) == 2
        and isinstance(value[0], str)
        and type(value[1]) is int
    )


def _host(name: str) -> str:
    return LOCAL if name in {"", "localhost"} else name
