"""Zeek's wire formats, its events as typed dataclasses, and links to its ZeroMQ backend."""

from importlib import import_module
from typing import Any, Final

from callboard.model.errors import InvalidOption
from callboard.zeek.event import from_value, zeek_event, zeek_events

__all__ = ["from_value", "zeek_event", "zeek_events"]

#: Names that need sockets and the package pyzmq. Their modules belong to a higher layer.
_ABOVE: Final = {
    "Curve": "zeromq_socket",
    "CurveServer": "zeromq_socket",
    "ZeekLogger": "zeek_logger",
    "ZeroMq": "zeromq_peer",
}


def __getattr__(name: str) -> Any:
    """Import a name of a higher layer at its first use.

    Raises:
        InvalidOption: pyzmq is not installed.
    """
    if name not in _ABOVE:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    try:
        return getattr(import_module(f"callboard.zeek.doors.{_ABOVE[name]}"), name)
    except ImportError as cause:
        msg = f"ZeroMQ needs a package ({cause.name}): pip install 'callboard[zmq]'"
        raise InvalidOption(msg) from cause
