"""Actors that are created by key, as entities are, and the messages to them."""

from callboard.actors.cell import Cell as Cell
from callboard.actors.dispatch import DispatchTable as DispatchTable
from callboard.actors.dispatch import HandlerDoor as HandlerDoor
from callboard.actors.dispatch import HandlerEntry as HandlerEntry
from callboard.actors.dispatch import hints_of as hints_of
from callboard.actors.dispatch import types_of as types_of
from callboard.actors.envelope import Encoded as Encoded
from callboard.actors.envelope import Envelope as Envelope
from callboard.actors.reference import Home as Home
from callboard.actors.reference import NoActor as NoActor
from callboard.actors.runner.slow_handlers import handler_frame as handler_frame
from callboard.actors.signals import Resume as Resume
from callboard.actors.signals import Stop as Stop
from callboard.actors.task import HandlerTask as HandlerTask
from callboard.basp.options import CHAIN_LIMIT as CHAIN_LIMIT
from callboard.proxies.lifetime.proxy import Proxy as Proxy
from callboard.proxies.messages import NodeDraining as NodeDraining
from callboard.proxies.traffic.batches import CARRIED_ASKED as CARRIED_ASKED
from callboard.proxies.traffic.batches import CARRIED_URGENT as CARRIED_URGENT
from callboard.proxies.traffic.batches import NO_DEADLINE as NO_DEADLINE
from callboard.proxies.traffic.batches import AskBatch as AskBatch
from callboard.proxies.traffic.batches import Carried as Carried
from callboard.proxies.traffic.batches import read_asks as read_asks
from callboard.proxies.traffic.remote_reply import RemoteReply as RemoteReply
