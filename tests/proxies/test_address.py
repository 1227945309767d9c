import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from callboard.actors.errors import InvalidAddress
from callboard.basp.node_id import NODE_ID_SIZE, NodeId
from callboard.proxies.address import (
    Address,
    actor_text,
    check_name,
    endpoint_text,
    parse_address,
    parse_node_address,
)

HOSTS = st.one_of(
    st.from_regex(r"[a-z][a-z0-9.-]{0,20}", fullmatch=True),
    st.ip_addresses(v=4).map(str),
    st.ip_addresses(v=6).map(str),
)
PATHS = st.from_regex(r"/[!-9;-~]{1,95}", fullmatch=True)
ENDPOINTS = st.tuples(HOSTS, st.integers(1, 65535)) | st.tuples(PATHS, st.just(0))
NODES = st.binary(min_size=NODE_ID_SIZE, max_size=NODE_ID_SIZE)
NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_.-]{0,20}", fullmatch=True)


@given(st.none() | ENDPOINTS, NODES, st.integers(0, 2**32 - 1))
@example(("::1", 1), bytes(18), 0)
def test_an_actors_text_reads_back(endpoint, node, number):
    text = actor_text(endpoint, node, number)

    assert parse_address(text) == Address(endpoint, number=number, node=NodeId(node))


@given(ENDPOINTS)
def test_a_nodes_text_reads_back(endpoint):
    assert parse_node_address(endpoint_text(endpoint)) == endpoint


@given(ENDPOINTS, NAMES)
def test_a_registered_name_is_the_path_of_an_address(endpoint, name):
    assert parse_address(f"{endpoint_text(endpoint)}/{name}") == Address(endpoint, name=name)


@given(st.tuples(HOSTS, st.integers(1, 65535)), NAMES)
def test_the_scheme_may_be_left_out_before_host_and_port(endpoint, name):
    text = endpoint_text(endpoint).removeprefix("basp://")

    assert parse_node_address(text) == endpoint
    assert parse_address(f"{text}/{name}") == Address(endpoint, name=name)


@given(st.text())
def test_any_text_is_an_address_or_invalid(text):
    try:
        found = parse_address("basp://" + text)
    except InvalidAddress:
        return
    assert isinstance(found, Address)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "tcp://host:1",
        "basp://host",
        "basp://host:",
        "basp://host:0",
        "basp://host:65536",
        "basp://host:99999999",
        "basp://ho st:1",
        "basp://::1:1",
        "basp://host:1/9name",
        "basp://host:1/na me",
        "basp://host:1/ü",
        "basp://host:1/a/b",
        f"basp:///4294967296@{'0' * 36}",
        f"basp:///1@{'0' * 35}",
        f"basp:///1@{'g' * 36}",
        "basp:///1",
        "basp://host:1\n",
        "unix:",
        "unix:relative",
        "unix:/a b",
        "unix:/a:b",
        "unix:/a:/9name",
        "basp+unix:///:1",
        "basp+tcp:/a",
        "unix:/" + "x" * 96,
    ],
)
def test_other_texts_are_refused_with_the_text_in_the_message(text):
    with pytest.raises(InvalidAddress) as caught:
        parse_address(text)

    assert repr(text) in str(caught.value)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    "text", ["basp://h:1/name", f"basp://h:1/1@{'0' * 36}", "basp://", "basp:///name"]
)
def test_a_nodes_address_has_a_host_and_no_path(text):
    with pytest.raises(InvalidAddress):
        parse_node_address(text)


@pytest.mark.parametrize("name", ["", "1a", "a b", "a/b", "é", "-a", "a@b"])
def test_names_that_could_not_stand_in_an_address_are_refused(name):
    with pytest.raises(InvalidAddress):
        check_name(name)
