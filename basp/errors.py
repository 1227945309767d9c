"""Errors of the protocol, which it shares with the other wires: see `protocol_errors`."""

from callboard.protocol_errors import *  # noqa: F403 - under the name that programs know
