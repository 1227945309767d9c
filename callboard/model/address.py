"""Addresses, subnets and ports.

Every address has 16 bytes. An IPv4 address is stored as a mapped IPv6 address
(`::ffff:a.b.c.d`), and any address of that form *is* an IPv4 address. Addresses are ordered by
these bytes, subnets by network and then length, ports by number and then protocol.
"""

import ipaddress
import re
from enum import IntEnum
from typing import ClassVar, Final, Self

from callboard.model.errors import DataOverflow, InvalidData
from callboard.model.scalar import Scalar, whole_number
from callboard.support.aliases import alias

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
IPNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network

_MAPPED: Final = bytes(10) + b"\xff\xff"
_ADDRESS_BITS: Final = 128
_MAPPED_BITS: Final = 96
_V4, _V6 = 4, 6
#: Characters in the longest text of an address or subnet; zones are refused.
_TEXT_LIMIT: Final = 64


class Address(Scalar):
    """An IP address: `Address(packed, 4)`, `Address(packed, 6)`, or `Address()` for `::`.

    Raises:
        InvalidData: the wrong number of bytes, or a family that is neither 4 nor 6.
    """

    __slots__ = ()
    _key: bytes

    class ByteOrder(IntEnum):
        """Byte orders; addresses here are always in network byte order."""

        Host = 0
        Network = 1

    class Family(IntEnum):
        """The two families."""

        IPv4 = 0
        IPv6 = 1

    def __init__(self, packed: bytes = bytes(16), family: int = _V6) -> None:
        size = {_V4: 4, _V6: 16}.get(family)
        if size is None or len(packed) != size:
            msg = (
                f"{len(packed)} bytes are not an address of family {family}; pass 4 bytes for"
                " family 4, or 16 bytes for family 6"
            )
            raise InvalidData(msg)
        self._key = bytes(packed) if family == _V6 else _MAPPED + packed

    @classmethod
    def from_ip(cls, ip: IPAddress) -> Self:
        """Convert an address of Python's `ipaddress` module."""
        if getattr(ip, "scope_id", None) is not None:
            msg = f"{ip} has a zone, which is only valid on one machine"
            raise InvalidData(msg)
        return cls(ip.packed, ip.version)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `1.2.3.4` or `2001:db8::1`.

        Raises:
            InvalidData: the text has another form.
        """
        try:
            return cls.from_ip(ipaddress.ip_address(_bounded(text)))
        except ValueError as cause:
            msg = f"{text[:_TEXT_LIMIT]!r} is not an IP address"
            raise InvalidData(msg) from cause

    def is_v4(self) -> bool:
        """Return whether this is an IPv4 address."""
        return self._key.startswith(_MAPPED)

    def is_v6(self) -> bool:
        """Return whether this is an IPv6 address; a mapped IPv4 address is not."""
        return not self.is_v4()

    def bytes(self) -> bytes:
        """Return the 16 bytes."""
        return self._key

    def masked(self, top_bits: int) -> "Address":
        """Return the address with all but its first `top_bits` of 128 bits cleared."""
        mask = (1 << _ADDRESS_BITS) - (1 << (_ADDRESS_BITS - top_bits))
        return Address((int.from_bytes(self._key, "big") & mask).to_bytes(16, "big"))

    def to_ip(self) -> IPAddress:
        """Convert to an address of Python's `ipaddress` module."""
        if self.is_v4():
            return ipaddress.IPv4Address(self._key[12:])
        return ipaddress.IPv6Address(self._key)

    def __str__(self) -> str:
        return str(self.to_ip())


class Subnet(Scalar):
    """All addresses whose first `length` bits equal those of `network`.

    The length counts from the start of an IPv4 or IPv6 address (0 to 32, 0 to 128). The other
    bits of `network` are cleared. `Subnet()` is `::/0`.

    Raises:
        DataOverflow: the length does not fit the family.
    """

    __slots__ = ()
    _key: tuple[Address, int]

    def __init__(self, network: Address | None = None, length: int = 0) -> None:
        network = Address() if network is None else network
        ahead = _MAPPED_BITS if network.is_v4() else 0
        if not 0 <= length <= _ADDRESS_BITS - ahead:
            msg = f"a subnet of {network} has 0 to {_ADDRESS_BITS - ahead} bits, not {length}"
            raise DataOverflow(msg)
        self._key = (network.masked(ahead + length), length)

    @classmethod
    def from_ip(cls, ip: IPNetwork) -> Self:
        """Convert a network of Python's `ipaddress` module."""
        return cls(Address.from_ip(ip.network_address), ip.prefixlen)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `10.0.0.0/8`.

        Raises:
            InvalidData: the text has another form.
        """
        address, slash, length = _bounded(text).partition("/")
        if not slash or not re.fullmatch(r"[0-9]{1,3}", length):
            msg = f"{text[:_TEXT_LIMIT]!r} is not a subnet like 10.0.0.0/8"
            raise InvalidData(msg)
        try:
            return cls(Address.parse(address), int(length))
        except DataOverflow as cause:
            raise InvalidData(str(cause)) from cause

    def network(self) -> Address:
        """Return the first address."""
        return self._key[0]

    def length(self) -> int:
        """Return the prefix length: up to 32 for IPv4, up to 128 for IPv6."""
        return self._key[1]

    @alias(addr="address")
    def contains(self, address: Address) -> bool:
        """Return whether `address` is in the subnet."""
        network, length = self._key
        ahead = _MAPPED_BITS if network.is_v4() else 0
        return address.masked(ahead + length) == network

    def to_ip(self) -> IPNetwork:
        """Convert to a network of Python's `ipaddress` module.

        `0.0.0.0/0` stays an IPv4 network, because the address keeps its mapped prefix.
        """
        network, length = self._key
        return ipaddress.ip_network((network.to_ip(), length))

    def __str__(self) -> str:
        return f"{self._key[0]}/{self._key[1]}"


class PortProtocol(IntEnum):
    """The protocol of a port, with its number on the wire."""

    Unknown = 0
    TCP = 1
    UDP = 2
    ICMP = 3

    def __str__(self) -> str:
        return f"Protocol.{self.name}"


#: Names of protocols, indexed by number.
_PROTOCOL_NAMES: Final = ("?", "tcp", "udp", "icmp")
_PORT_MAX: Final = 65_535


class Port(Scalar):
    """A port number with its protocol: `Port(80, Port.TCP)`, printed as `80/tcp`.

    Raises:
        DataOverflow: the number is outside 0 to 65,535.
        InvalidData: the protocol is unknown.
        UnsupportedData: the number is not an integer.
    """

    __slots__ = ()
    _key: tuple[int, PortProtocol]

    Protocol = PortProtocol
    Unknown: ClassVar = PortProtocol.Unknown
    TCP: ClassVar = PortProtocol.TCP
    UDP: ClassVar = PortProtocol.UDP
    ICMP: ClassVar = PortProtocol.ICMP

    def __init__(self, number: int = 0, protocol: int = PortProtocol.Unknown) -> None:
        number = whole_number(number, "a port number")
        if not 0 <= number <= _PORT_MAX:
            msg = f"port {number} is outside 0 to {_PORT_MAX:,}"
            raise DataOverflow(msg)
        try:
            self._key = (number, PortProtocol(protocol))
        except ValueError as cause:
            msg = f"{protocol!r} is not a protocol; use Port.TCP, UDP, ICMP or Unknown"
            raise InvalidData(msg) from cause

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `80/tcp`, `53/udp`, `8/icmp` or `80/?`.

        Raises:
            InvalidData: the text has another form.
        """
        number, _, name = _bounded(text).partition("/")
        if name not in _PROTOCOL_NAMES or not re.fullmatch(r"[0-9]{1,5}", number):
            msg = f"{text[:_TEXT_LIMIT]!r} is not a port like 80/tcp"
            raise InvalidData(msg)
        try:
            return cls(int(number), _PROTOCOL_NAMES.index(name))
        except DataOverflow as cause:
            raise InvalidData(str(cause)) from cause

    def number(self) -> int:
        """Return the number, 0 to 65,535."""
        return self._key[0]

    def get_type(self) -> PortProtocol:
        """Return the protocol."""
        return self._key[1]

    def __str__(self) -> str:
        return f"{self._key[0]}/{_PROTOCOL_NAMES[self._key[1]]}"


def _bounded(text: str) -> str:
    """Return the text; raise `InvalidData` if it is too long to be valid."""
    if len(text) > _TEXT_LIMIT:
        msg = f"{len(text):,} characters are too long for an address or port ({_TEXT_LIMIT})"
        raise InvalidData(msg)
    return text
