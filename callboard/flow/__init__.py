"""Flows: messages in one direction, paid for with credit, through a flow broker.

from callboard.flow import Flow, FlowBroker

with FlowBroker.bind("basp://127.0.0.1:4222", factory=factory) as broker:
    broker.run()

with Flow.connect("basp://127.0.0.1:4222", direction="extract", credit=10) as flow:
    flow.put(b"...")
"""

from callboard.flow.broker import FlowBroker
from callboard.flow.errors import (
    FactoryDeadlock,
    FlowAborted,
    FlowEnded,
    FlowError,
    FlowRefused,
    FlowTimeout,
    MalformedMessage,
)
from callboard.flow.factories import Bot
from callboard.flow.flow import Flow
from callboard.flow.handler import FlowHandler
from callboard.flow.protocol.machine import Dat
from callboard.flow.protocol.message import Message

__all__ = [
    "Bot",
    "Dat",
    "FactoryDeadlock",
    "Flow",
    "FlowAborted",
    "FlowBroker",
    "FlowEnded",
    "FlowError",
    "FlowHandler",
    "FlowRefused",
    "FlowTimeout",
    "MalformedMessage",
    "Message",
]
