"""Gateways: modules that publish messages to each other, linked by a configuration.

from callboard.gateway import Gateway, Module, module

with Gateway.from_file("gateway.toml") as gateway:
    gateway.link("*", "sink")
    gateway.wait()
"""

from callboard.gateway.broker import ModuleBroker
from callboard.gateway.errors import (
    BrokerClosed,
    ConfigurationError,
    DuplicateLink,
    DuplicateModule,
    GatewayError,
    InvalidLink,
    MalformedControl,
    MalformedMessage,
    ModuleFailed,
    PublishTimeout,
    UnknownModule,
)
from callboard.gateway.events import GatewayEvent, ModuleStatus
from callboard.gateway.gateway import Gateway
from callboard.gateway.handle import DeadLetter, ModuleHandle, ModuleOptions
from callboard.gateway.module import Module, module
from callboard.gateway.remote import offer_module
from callboard.gateway.wire.message import Message

__all__ = [
    "BrokerClosed",
    "ConfigurationError",
    "DeadLetter",
    "DuplicateLink",
    "DuplicateModule",
    "Gateway",
    "GatewayError",
    "GatewayEvent",
    "InvalidLink",
    "MalformedControl",
    "MalformedMessage",
    "Message",
    "Module",
    "ModuleBroker",
    "ModuleFailed",
    "ModuleHandle",
    "ModuleOptions",
    "ModuleStatus",
    "PublishTimeout",
    "UnknownModule",
    "module",
    "offer_module",
]
