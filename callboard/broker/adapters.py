"""Adapters of an endpoint: ports and peerings with protocols of other software."""

import logging
from typing import Any, Final, TypeVar

from callboard.arguments import require
from callboard.broker.options import Configuration
from callboard.broker.tls import BrokerTls
from callboard.closing import Closing
from callboard.kernel import errors
from callboard.kernel.reply import Future
from callboard.model.errors import InvalidOption
from callboard.support.slots import DOORS, WIRES
from callboard.topics.hub import Hub

_log = logging.getLogger("callboard.broker")

A = TypeVar("A", bound=Closing)

#: Protocol between endpoints of nodes.
NATIVE: Final = "native"


class Adapters:
    """The adapters that are closed together with an endpoint.

    Attributes:
        peerings: the adapters that peer with other endpoints, by the names of their protocols.
    """

    def __init__(self, hub: Hub, configuration: Configuration) -> None:
        """Start without adapters."""
        self._hub, self._configuration = hub, configuration
        self._adapters: list[Closing] = []
        self.peerings: dict[str, Any] = {}

    def hold(self, adapter: A) -> A:
        """Close an adapter together with the endpoint, and return it."""
        self._adapters.append(adapter)
        return adapter

    def close(self) -> None:
        """Close all adapters."""
        for adapter in self._adapters:
            adapter.close()

    def peering(self, wire: str) -> Any:
        """Return the adapter of a protocol, created at the first use.

        Raises:
            InvalidOption: the protocol is unknown.
            TlsError: a TLS file is unusable.
        """
        if wire not in self.peerings:
            require(isinstance(wire, str), "wire takes the name of a wire", wire)
            try:
                peering = WIRES.load(wire)
            except LookupError:
                names = ", ".join((NATIVE, *WIRES.names()))
                msg = f"there is no wire {wire[:80]!r}; use one of {names}"
                raise InvalidOption(msg) from None
            adapter = peering(self._hub, BrokerTls.of(self._configuration))
            self.peerings[wire] = self.hold(adapter)
        return self.peerings[wire]

    def listen(self, address: str, port: int, wire: str, *, insecure: bool) -> int:
        """Accept peers with a protocol on a port; return the port, or 0 if that fails."""
        options = self._configuration.options
        is_guarded = self._configuration.has_certificates and not options.disable_ssl
        host = address or ("0.0.0.0" if is_guarded else "127.0.0.1")  # noqa: S104
        peering = self.peering(wire)
        try:
            number: int = peering.listen(host, port, is_guarded=is_guarded, insecure=insecure)
        except (OSError, errors.CallboardError, ValueError) as error:
            _log.error("cannot listen at %s:%s: %s", host, port, error)
            return 0
        return number

    def unpeer(self, address: tuple[str, int]) -> Future[bool] | None:
        """End the peering with an address; None if no adapter has one."""
        for peering in self.peerings.values():
            done: Future[bool] | None = peering.unpeer(address)
            if done is not None:
                return self._hub.runtime.shutdown.guard(done)
        return None

    def publish_to(self, endpoint: bytes, topic: str, value: Any) -> bool:
        """Send a value to the only endpoint that gets it; False if no adapter reaches it."""
        return any(
            peering.publish_to(endpoint, topic, value) for peering in self.peerings.values()
        )


def web_socket(name: str) -> Any:
    """Return one side of Zeek's WebSocket.

    Raises:
        InvalidOption: its package is not installed.
    """
    try:
        return DOORS.load(f"websocket {name}")
    except ImportError as cause:
        msg = f"WebSocket needs a package ({cause.name}): pip install 'callboard[websocket]'"
        raise InvalidOption(msg) from cause
