"""Addresses of nodes and actors as text.

    basp://HOST:PORT              a node
    basp://HOST:PORT/NAME         an actor by its registered name
    basp://HOST:PORT/ID@NODE      an actor by number and node id, with the node's address
    basp:///ID@NODE               the same without a known address
    basp+unix:/PATH               a node at a Unix socket; also unix:/PATH
    basp+unix:/PATH:/NAME         an actor there; /ID@NODE as above

Sources of node addresses, which are looked up repeatedly (`NodeSource`):

    dns://NAME:PORT               all addresses of the name, such as a headless service
    srv://NAME                    the targets and ports of its SRV records
    file:PATH                     a file with one address of a node in each line

Before HOST:PORT, `basp://` is optional. HOST is a name, an IPv4 address, or an IPv6 address in
brackets. NODE has 36 hexadecimal digits. PATH has no colons or spaces.
"""

import re
from typing import Final

from callboard.actors.errors import InvalidAddress
from callboard.actors.values import Answer
from callboard.arguments import require
from callboard.basp.node_id import NODE_ID_SIZE, NodeId
from callboard.support.dataclass import dataclass

_ADDRESS: Final = re.compile(
    r"(?:(?:basp://)?(?P<host>\[[0-9A-Fa-f:.%]+\]|[^\[\]:/@\s]+):(?P<port>\d{1,5})|basp://"
    r"|(?:basp\+)?unix:(?P<path>/[!-9;-~]+)(?:$|:))"
    r"(?:/(?:(?P<number>\d{1,10})@(?P<node>[0-9A-Fa-f]{36})|(?P<name>[A-Za-z_][\w.-]*))?)?",
    re.ASCII,
)
_NAME: Final = re.compile(r"[A-Za-z_][\w.-]*", re.ASCII)

#: Prefixes of the addresses of Unix sockets.
UNIX: Final = ("unix:", "basp+unix:")

#: Host and port; or the path of a Unix socket, and 0.
Endpoint = tuple[str, int]


#: Bytes of a path: systems allow 103 or 107, and a temporary name of the file is longer.
MOST_PATH: Final = 96


def checked_endpoint(host: str, port: int) -> Endpoint:
    """Return host and port as an endpoint.

    Raises:
        WrongArgument: the host is not text, or the port is not a number.
        InvalidAddress: the host is an address with a port, or the number is out of range.
    """
    require(isinstance(host, str), "a host must be a text, such as '127.0.0.1'", host)
    require(type(port) is int, "a port must be a number, such as 9999", port)
    if "://" in host or not 0 < port < 65536:
        msg = f"({host!r:.80}, {port}) is not host and port, such as ('127.0.0.1', 9999)"
        raise InvalidAddress(msg)
    return host, port


def is_path(host: str) -> bool:
    """Return whether a host is the path of a Unix socket."""
    return host.startswith("/")


@dataclass(frozen=True, slots=True)
class Address:
    """A parsed address; parts that the text does not have are None."""

    endpoint: Endpoint | None
    name: str | None = None
    number: int | None = None
    node: NodeId | None = None


def parse_address(text: str) -> Address:
    """Parse an address.

    Raises:
        InvalidAddress: the text is malformed.
    """
    needed = "an address must be a text, such as 'basp://HOST:PORT', node.address or str(ref)"
    require(isinstance(text, str), needed, text)
    match = _ADDRESS.fullmatch(text)
    if match is None:
        msg = (
            f"{text!r} is not an address; write basp://HOST:PORT, "
            "basp://HOST:PORT/NAME, basp://HOST:PORT/ID@NODE or basp+unix:/PATH"
        )
        raise InvalidAddress(msg)
    endpoint = _endpoint(text, match)
    if match["number"] is None:
        return Address(endpoint, name=match["name"])
    number = int(match["number"])
    if number >= 2**32:
        msg = f"{text!r}: actor number {number} is larger than 4,294,967,295"
        raise InvalidAddress(msg)
    return Address(endpoint, number=number, node=NodeId(bytes.fromhex(match["node"])))


def _endpoint(text: str, match: re.Match[str]) -> Endpoint | None:
    """Return the endpoint of a match; None if it has none."""
    path = match["path"]
    if path is not None:
        if len(path) > MOST_PATH:
            msg = (
                f"{text!r}: the path has {len(path)} bytes; a socket's path has at most "
                f"{MOST_PATH}"
            )
            raise InvalidAddress(msg)
        return path, 0
    if match["host"] is None:
        return None
    port = int(match["port"])
    if not 0 < port < 65536:
        msg = f"{text!r}: port {port} is not between 1 and 65535"
        raise InvalidAddress(msg)
    return match["host"].strip("[]"), port


def parse_node_address(text: str) -> Endpoint:
    """Parse the address of a node, and refuse an actor's address.

    Raises:
        InvalidAddress: the text is not a node's address.
    """
    address = parse_address(text)
    if address.endpoint is None or address.name is not None or address.number is not None:
        msg = f"{text!r} does not name a node; write basp://HOST:PORT or basp+unix:/PATH"
        raise InvalidAddress(msg)
    return address.endpoint


@dataclass(frozen=True, slots=True)
class NodeSource:
    """A source of node addresses.

    Attributes:
        text: as it was written.
        kind: `dns`, `srv` or `file`.
        where: a name, or the path of the file.
        port: the port for `dns`.
    """

    text: str
    kind: str
    where: str
    port: int = 0


_SOURCE: Final = re.compile(
    r"(?:(?P<dns>dns)://(?P<name>[^\[\]:/@\s]+):(?P<port>\d{1,5})"
    r"|(?P<srv>srv)://(?P<records>[^\[\]:/@\s]+)"
    r"|(?P<file>file):(?://)?(?P<path>[^\s].*))/?",
    re.ASCII,
)


def parse_seed(text: str) -> Endpoint | NodeSource:
    """Parse the address of a node, or a source of such addresses.

    Raises:
        InvalidAddress: the text is neither.
    """
    value: Answer = text
    if not isinstance(value, str) or not text.startswith(("dns:", "srv:", "file:")):
        return parse_node_address(text)
    match = _SOURCE.fullmatch(text)
    if match is None:
        msg = f"{text!r} is not a node source; write dns://NAME:PORT, srv://NAME, file:PATH"
        raise InvalidAddress(msg)
    if match["file"]:
        return NodeSource(text, "file", match["path"])
    if match["srv"]:
        return NodeSource(text, "srv", match["records"])
    return NodeSource(
        text, "dns", *parse_node_address(f"basp://{match['name']}:{match['port']}")
    )


def check_node_id(node: bytes, call: str) -> bytes:
    """Return the id of a node.

    Raises:
        WrongArgument: the argument is not a node id.
    """
    needed = f"{call} takes the {NODE_ID_SIZE} bytes of a node's id, as connect() returns them"
    value: Answer = node
    is_id = isinstance(value, bytes) and len(value) == NODE_ID_SIZE
    require(is_id, f"{needed} and node.node_id has them", node)
    return node


def check_name(name: str) -> str:
    """Return a name that an actor may be registered under.

    Raises:
        InvalidAddress: the name is not valid in an address.
    """
    require(isinstance(name, str), "the name of an actor or group must be a text", name)
    if _NAME.fullmatch(name) is None:
        msg = (
            f"{name!r} cannot be a name: a name begins with a letter or _, followed by "
            "letters, digits, "
            "_ . -"
        )
        raise InvalidAddress(msg)
    return name


def endpoint_text(endpoint: Endpoint) -> str:
    """Return a node's address as text."""
    host, port = endpoint
    if is_path(host):
        return f"basp+unix:{host}:"  # the colon allows a name to follow
    return f"basp://[{host}]:{port}" if ":" in host else f"basp://{host}:{port}"


def place_text(endpoint: Endpoint) -> str:
    """Return the address of another program as text: host and port, or a path."""
    host, port = endpoint
    if is_path(host):
        return host
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def actor_text(endpoint: Endpoint | None, node: bytes, number: int) -> str:
    """Return an actor's address as text."""
    prefix = "basp://" if endpoint is None else endpoint_text(endpoint)
    return f"{prefix}/{number}@{node.hex()}"
