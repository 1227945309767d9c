"""Addresses, subnets and ports.

Every address takes 16 bytes; an IPv4 address is the last four of a mapped IPv6 address
(`::ffff:a.b.c.d`), and whatever has that form *is* an IPv4 address. They are ordered by these
bytes, subnets by network and then length, ports by number and then protocol.
"""

import ipaddress
import re
from enum import IntEnum
from typing import ClassVar, Final, Self

from callboard.model.errors import DataOverflow, InvalidData
from callboard.model.scalar import Scalar, whole_number
from callboard.support.keywords import also_named

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
IPNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network

_MAPPED: Final = bytes(10) + b"\xff\xff"
_ADDRESS_BITS: Final = 128
_MAPPED_BITS: Final = 96
_V4, _V6 = 4, 6
#: The longest text of an address or subnet; the zone of a scoped address is refused.
_TEXT_LIMIT: Final = 64


class Address(Scalar):
    """An IP address: `Address(packed, 4)`, `Address(packed, 6)`, or `Address()` for `::`.

    Raises:
        InvalidData: the wrong number of bytes, or a family that is neither 4 nor 6.
    """

    __slots__ = ()
    _key: bytes

    class ByteOrder(IntEnum):
        """The order of bytes; ours is always that of the network."""

        Host = 0
        Network = 1

    class Family(IntEnum):
        """The two families."""

        IPv4 = 0
        IPv6 = 1

    def __init__(self, packed: bytes = bytes(16), family: int = _V6) -> None:
        wanted = {_V4: 4, _V6: 16}.get(family)
        if wanted is None or len(packed) != wanted:
            of = f"family {family} (4 or 16 bytes, 4 or 6)"
            msg = f"{len(packed)} bytes are no address of {of}"
            raise InvalidData(msg)
        self._key = bytes(packed) if family == _V6 else _MAPPED + packed

    @classmethod
    def from_ip(cls, ip: IPAddress) -> Self:
        """Return the address of Python's `ipaddress` module as one of ours."""
        if getattr(ip, "scope_id", None) is not None:
            msg = f"{ip} has a zone, which means nothing on another machine"
            raise InvalidData(msg)
        return cls(ip.packed, ip.version)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `1.2.3.4` or `2001:db8::1`.

        Raises:
            InvalidData: anything else.
        """
        try:
            return cls.from_ip(ipaddress.ip_address(_bounded(text)))
        except ValueError as cause:
            msg = f"{text[:_TEXT_LIMIT]!r} is no IP address"
            raise InvalidData(msg) from cause

    def is_v4(self) -> bool:
        """Return whether this is an IPv4 address."""
        return self._key.startswith(_MAPPED)

    def is_v6(self) -> bool:
        """Return whether this is an IPv6 address, and not a mapped IPv4 address."""
        return not self.is_v4()

    def bytes(self) -> bytes:
        """Return the 16 bytes."""
        return self._key

    def masked(self, top_bits: int) -> "Address":
        """Return the address with all but its first `top_bits` of 128 bits cleared."""
        kept = (1 << _ADDRESS_BITS) - (1 << (_ADDRESS_BITS - top_bits))
        return Address((int.from_bytes(self._key, "big") & kept).to_bytes(16, "big"))

    def to_ip(self) -> IPAddress:
        """Return the address as Python's `ipaddress` module has it."""
        if self.is_v4():
            return ipaddress.IPv4Address(self._key[12:])
        return ipaddress.IPv6Address(self._key)

    def __str__(self) -> str:
        return str(self.to_ip())


class Subnet(Scalar):
    """All addresses that start as `network` does, in `length` bits.

    The length counts from the start of an IPv4 or IPv6 address (0 to 32, 0 to 128); the bits
    of `network` behind it are cleared. `Subnet()` is `::/0`.

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
        """Return the network of Python's `ipaddress` module as one of ours."""
        return cls(Address.from_ip(ip.network_address), ip.prefixlen)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `10.0.0.0/8`.

        Raises:
            InvalidData: anything else.
        """
        address, slash, length = _bounded(text).partition("/")
        if not slash or not re.fullmatch(r"[0-9]{1,3}", length):
            msg = f"{text[:_TEXT_LIMIT]!r} is no subnet, as 10.0.0.0/8 is one"
            raise InvalidData(msg)
        try:
            return cls(Address.parse(address), int(length))
        except DataOverflow as cause:
            raise InvalidData(str(cause)) from cause

    def network(self) -> Address:
        """Return the first address."""
        return self._key[0]

    def length(self) -> int:
        """Return the number of fixed bits, counted in the family of the address."""
        return self._key[1]

    @also_named(addr="address")
    def contains(self, address: Address) -> bool:
        """Return whether `address` is one of these."""
        network, length = self._key
        ahead = _MAPPED_BITS if network.is_v4() else 0
        return address.masked(ahead + length) == network

    def to_ip(self) -> IPNetwork:
        """Return the subnet as Python's `ipaddress` module has it.

        A `/0` of IPv4 stays one: the address keeps its mapped prefix.
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


#: By their numbers.
_PROTOCOL_NAMES: Final = ("?", "tcp", "udp", "icmp")
_PORT_MAX: Final = 65_535


class Port(Scalar):
    """A port number with its protocol: `Port(80, Port.TCP)`, printed as `80/tcp`.

    Raises:
        DataOverflow: the number is outside 0 to 65,535.
        InvalidData: there is no such protocol.
        UnsupportedData: the number is no integer.
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
            msg = f"{protocol!r} is no protocol of ports: Port.TCP, UDP, ICMP or Unknown"
            raise InvalidData(msg) from cause

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `80/tcp`, `53/udp`, `8/icmp` or `80/?`.

        Raises:
            InvalidData: anything else.
        """
        number, _, name = _bounded(text).partition("/")
        if name not in _PROTOCOL_NAMES or not re.fullmatch(r"[0-9]{1,5}", number):
            msg = f"{text[:_TEXT_LIMIT]!r} is no port, as 80/tcp is one"
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
    """Return a text that is short enough to be parsed."""
    if len(text) > _TEXT_LIMIT:
        msg = f"{len(text):,} characters are too long for an address or port ({_TEXT_LIMIT})"
        raise InvalidData(msg)
    return text
