"""Nodes, links, paths and addresses, and the numbers of actors that every node has."""

from callboard.basp.header import (
    CORE_ACTOR,
    DIRECTORY,
    ENTITIES,
    FIRST_ACTOR,
    INSPECTOR,
    LOG_INTAKE,
    LOG_SERVICE,
)
from callboard.basp.node_id import NODE_ID_SIZE, make_node_id, node_id_text
from callboard.proxies.address import (
    UNIX,
    Endpoint,
    checked_endpoint,
    endpoint_text,
    parse_node_address,
    parse_seed,
)
from callboard.proxies.link.dialer import LAST_RETRY, Dial
from callboard.proxies.messages import Lookup
from callboard.proxies.topology import Topology

__all__ = [
    "CORE_ACTOR",
    "DIRECTORY",
    "Dial",
    "ENTITIES",
    "Endpoint",
    "FIRST_ACTOR",
    "INSPECTOR",
    "LAST_RETRY",
    "LOG_INTAKE",
    "LOG_SERVICE",
    "Lookup",
    "NODE_ID_SIZE",
    "Topology",
    "UNIX",
    "checked_endpoint",
    "endpoint_text",
    "make_node_id",
    "node_id_text",
    "parse_node_address",
    "parse_seed",
]
