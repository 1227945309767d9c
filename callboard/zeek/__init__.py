"""Zeek's wire formats, its events as typed dataclasses, and the doors to its ZeroMQ."""

from importlib import import_module
from typing import Any, Final

from callboard.model.errors import InvalidOption
from callboard.zeek.event import from_value, zeek_event, zeek_events

__all__ = ["from_value", "zeek_event", "zeek_events"]

#: What has sockets, and so stands above this room, and needs the package pyzmq.
_ABOVE: Final = {
    "Curve": "zeromq_socket",
    "CurveServer": "zeromq_socket",
    "ZeekLogger": "zeek_logger",
    "ZeroMq": "zeromq_peer",
}


def __getattr__(name: str) -> Any:
    """Import what stands above this room when it is first used.

    Raises:
        InvalidOption: its package is not installed.
    """
    if name not in _ABOVE:
        what = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(what)
    try:
        return getattr(import_module(f"callboard.zeek.doors.{_ABOVE[name]}"), name)
    except ImportError as cause:
        msg = f"ZeroMQ needs a package ({cause.name}): pip install 'callboard[zmq]'"
        raise InvalidOption(msg) from cause
