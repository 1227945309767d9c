"""Actors that are created by key, as entities are, and the messages to them."""

from callboard.actors.cell import Cell
from callboard.actors.dispatch import (
    DispatchTable,
    HandlerDoor,
    HandlerEntry,
    hints_of,
    types_of,
)
from callboard.actors.envelope import Encoded, Envelope
from callboard.actors.reference import Home, NoActor
from callboard.actors.runner.slow_handlers import handler_frame
from callboard.actors.signals import Resume, Stop
from callboard.actors.task import HandlerTask
from callboard.basp.keyed_name import (
    KEY_LIMIT,
    QUEUE_PREFIX,
    TYPE_NAME_LIMIT,
    is_key,
    is_type_name,
)
from callboard.basp.options import CHAIN_LIMIT
from callboard.proxies.lifetime.proxy import Proxy
from callboard.proxies.messages import TAKES_NO_MORE
from callboard.proxies.traffic.ask_batch import (
    CARRIED_ASKED,
    CARRIED_URGENT,
    NO_DEADLINE,
    AskBatch,
    Carried,
    read_asks,
)
from callboard.proxies.traffic.incoming import RemoteTeller

__all__ = [
    "CHAIN_LIMIT",
    "Cell",
    "DispatchTable",
    "Encoded",
    "Envelope",
    "HandlerDoor",
    "HandlerEntry",
    "HandlerTask",
    "Home",
    "KEY_LIMIT",
    "NoActor",
    "AskBatch",
    "CARRIED_ASKED",
    "CARRIED_URGENT",
    "Carried",
    "NO_DEADLINE",
    "read_asks",
    "Proxy",
    "QUEUE_PREFIX",
    "RemoteTeller",
    "Resume",
    "Stop",
    "TAKES_NO_MORE",
    "TYPE_NAME_LIMIT",
    "handler_frame",
    "hints_of",
    "is_key",
    "is_type_name",
    "types_of",
]
