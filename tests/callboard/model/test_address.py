"""Addresses, subnets, ports: bytes, order, text."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.model.address import Address, Port, Subnet
from callboard.model.errors import DataOverflow, InvalidData, UnsupportedData

V4 = st.ip_addresses(v=4).map(Address.from_ip)
V6 = st.ip_addresses(v=6).map(Address.from_ip)


def test_an_ipv4_address_is_sixteen_bytes_with_a_mapped_prefix():
    address = Address(b"abcd", 4)

    assert address.bytes() == bytes(10) + b"\xff\xffabcd"
    assert address == Address(address.bytes(), 6)
    assert (address.is_v4(), address.is_v6(), str(address)) == (True, False, "97.98.99.100")
    assert (Address().is_v4(), repr(Address())) == (False, "::")


@pytest.mark.parametrize(("packed", "family"), [(b"abc", 4), (b"abcd", 6), (b"abcd", 5)])
def test_bytes_of_another_length_or_family_are_refused(packed, family):
    with pytest.raises(InvalidData, match="not an address of family"):
        Address(packed, family)


def test_a_mapped_address_is_the_ipv4_address():
    mapped = ipaddress.ip_address("::ffff:1.2.3.4")

    assert Address.from_ip(mapped) == Address.parse("1.2.3.4")
    assert Address.from_ip(mapped).to_ip() == ipaddress.ip_address("1.2.3.4")


@given(V4 | V6)
def test_an_address_reads_what_it_prints(address):
    assert Address.parse(str(address)) == address
    assert Address.from_ip(address.to_ip()) == address


@given(V4 | V6, V4 | V6)
def test_addresses_are_ordered_by_their_bytes(a, b):
    assert (a < b) == (a.bytes() < b.bytes())
    assert (a == b) == (a.bytes() == b.bytes())


@pytest.mark.parametrize("text", ["", "1.2.3", "1.2.3.4.5", "::1%eth0", "x", "1" * 99])
def test_other_text_is_no_address(text):
    with pytest.raises(InvalidData):
        Address.parse(text)


@given(V4, st.integers(0, 32))
def test_a_subnet_clears_the_bits_behind_its_length(address, length):
    subnet = Subnet(address, length)

    assert subnet.to_ip() == ipaddress.ip_network((address.to_ip(), length), strict=False)
    assert subnet.contains(address)
    assert Subnet.parse(str(subnet)) == subnet == Subnet.from_ip(subnet.to_ip())
    assert (subnet.network().masked(96 + length), subnet.length()) == (subnet.network(), length)


@given(V6, st.integers(0, 128))
def test_a_subnet_of_ipv6_reads_what_it_prints(address, length):
    if address.is_v6():
        subnet = Subnet(address, length)

        assert Subnet.parse(str(subnet)).contains(address)


def test_an_address_outside_is_not_contained():
    subnet = Subnet.parse("97.98.0.0/16")

    assert subnet.contains(Address(b"abxx", 4))
    assert not subnet.contains(Address(b"axxx", 4))
    assert not Subnet.parse("0.0.0.0/0").contains(Address.parse("::1"))


def test_subnets_are_ordered_by_network_then_length():
    texts = ["::/0", "9.0.0.0/30", "10.0.0.0/8", "10.0.0.0/9", "10.0.0.0/32", "11.0.0.0/8"]
    subnets = [Subnet.parse(text) for text in texts]

    assert sorted(set(subnets)) == subnets
    assert repr(subnets[1]) == "9.0.0.0/30"


@pytest.mark.parametrize(("address", "length"), [("1.2.3.4", 33), ("1.2.3.4", -1), ("::", 129)])
def test_a_length_outside_the_family_raises(address, length):
    with pytest.raises(DataOverflow, match="a subnet of"):
        Subnet(Address.parse(address), length)


@pytest.mark.parametrize("text", ["10.0.0.0", "10.0.0.0/", "10.0.0.0/33", "x/8", "::/1000"])
def test_other_text_is_no_subnet(text):
    with pytest.raises(InvalidData):
        Subnet.parse(text)


@pytest.mark.parametrize("text", ["80/tcp", "0/?", "65535/udp", "8/icmp"])
def test_a_port_reads_what_it_prints(text):
    assert str(Port.parse(text)) == repr(Port.parse(text)) == text


@pytest.mark.parametrize("text", ["80", "80/TCP", "/tcp", "65536/tcp", "-1/tcp", "٣/tcp"])
def test_other_text_is_no_port(text):
    with pytest.raises(InvalidData):
        Port.parse(text)


def test_protocols_are_numbered_as_on_the_wire():
    assert [Port.Unknown, Port.TCP, Port.UDP, Port.ICMP] == [0, 1, 2, 3]
    assert list(Port.Protocol) == [0, 1, 2, 3]


def test_a_port_shows_its_parts_and_compares():
    port = Port(80, Port.TCP)

    assert (port.number(), port.get_type()) == (80, Port.Protocol.TCP)
    assert Port() < port < Port(80, Port.UDP) < Port(81, Port.TCP)
    assert {port, Port(80, 1)} == {port}


@pytest.mark.parametrize(
    ("number", "protocol", "error"),
    [
        (65_536, Port.TCP, DataOverflow),
        (-1, Port.TCP, DataOverflow),
        (80, 4, InvalidData),
        ("80", Port.TCP, UnsupportedData),
        (True, Port.TCP, UnsupportedData),
    ],
)
def test_a_port_out_of_range_raises(number, protocol, error):
    with pytest.raises(error):
        Port(number, protocol)
