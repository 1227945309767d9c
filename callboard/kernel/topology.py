"""Nodes, links, paths and addresses, and the numbers of actors that every node has."""

from callboard.basp.header import CORE_ACTOR as CORE_ACTOR
from callboard.basp.header import DIRECTORY as DIRECTORY
from callboard.basp.header import ENTITIES as ENTITIES
from callboard.basp.header import FIRST_ACTOR as FIRST_ACTOR
from callboard.basp.header import INSPECTOR as INSPECTOR
from callboard.basp.header import LOG_INTAKE as LOG_INTAKE
from callboard.basp.header import LOG_SERVICE as LOG_SERVICE
from callboard.basp.header import SPAWN_SERVER as SPAWN_SERVER
from callboard.basp.node_id import NODE_ID_SIZE as NODE_ID_SIZE
from callboard.basp.node_id import make_node_id as make_node_id
from callboard.basp.node_id import node_id_text as node_id_text
from callboard.proxies.address import UNIX as UNIX
from callboard.proxies.address import Endpoint as Endpoint
from callboard.proxies.address import check_name as check_name
from callboard.proxies.address import checked_endpoint as checked_endpoint
from callboard.proxies.address import endpoint_text as endpoint_text
from callboard.proxies.address import parse_node_address as parse_node_address
from callboard.proxies.address import parse_seed as parse_seed
from callboard.proxies.link.dialer import LAST_RETRY as LAST_RETRY
from callboard.proxies.messages import Lookup as Lookup
from callboard.proxies.messages import Spawn as Spawn
from callboard.proxies.topology import Topology as Topology
