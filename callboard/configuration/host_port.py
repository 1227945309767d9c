"""Network addresses in configurations and options: HOST:PORT, and Unix sockets."""

from typing import Final

from callboard.kernel.topology import UNIX, parse_node_address

PORT_LIMIT: Final = 65_535


def parse_host_port(text: str) -> tuple[str, int]:
    """Return host and port of `HOST:PORT`; an IPv6 host may stand in brackets.

    Raises:
        ValueError: the text has another form.
    """
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or len(port) > 5 or int(port) > PORT_LIMIT:
        message = f"{text!r} is not HOST:PORT; write it like 127.0.0.1:4222"
        raise ValueError(message)
    return host.strip("[]"), int(port)


def parse_listen(text: str) -> tuple[str, int]:
    """Return the arguments of `node.listen` for `HOST:PORT` or `unix:/PATH`.

    Raises:
        ValueError: the text has another form.
    """
    if text.startswith(UNIX):
        parse_node_address(text)
        return text, 0
    return parse_host_port(text)
