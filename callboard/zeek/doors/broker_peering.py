"""Base of the peerings over both Broker wires: filters, encoding, ports and dials."""

import logging
from collections.abc import Iterator, Sequence
from typing import Final

from callboard.closing import Closing
from callboard.kernel.ports import HANDSHAKE_LIMIT, refuse_unguarded
from callboard.kernel.reply import Future
from callboard.kernel.topology import Endpoint
from callboard.kernel.wire import ForeignDial, ForeignLink, ForeignPort
from callboard.model.encoding import python_to_cbor
from callboard.model.errors import EndpointError
from callboard.tls.certificates import Certificates, TlsSource
from callboard.topics.hub import Hub
from callboard.topics.machine.effect import DoorReceiver, Item, Pair
from callboard.topics.machine.run import content_of
from callboard.topics.machine.topic import is_reserved
from callboard.zeek.doors.unwritten import UnwrittenMessages
from callboard.zeek.transcoder import broker_from_cbor

_log: Final = logging.getLogger("callboard.zeek")

#: Seconds for which reading from a peer pauses while the hub is full.
PAUSE: Final = 0.02

#: The wire has 16 bits for a TTL.
_TTL_HIGHEST: Final = 0xFFFF


class BrokerNeighbor(DoorReceiver):
    """A peer, and the receiver of the messages that its filter matches.

    Attributes:
        name: the name of the neighbor's node or endpoint, as its own programs print it.
        topics: its filter.
        brought: messages received from it.
        taken: messages sent to it.
        unwritten: messages that Broker's format cannot express.
        dropped: messages that found no room.
        commands: store commands that it sent; they are ignored.
    """

    takes_pairs = True

    def __init__(self, hub: Hub, name: str = "") -> None:
        """Create a neighbor with an empty filter."""
        self.name = name
        self.topics: tuple[str, ...] = ()
        self.brought = self.taken = self.dropped = self.commands = 0
        self._hub = hub
        self._unwritten = UnwrittenMessages(hub, _log)
        self._subscribed: frozenset[str] = frozenset()

    @property
    def unwritten(self) -> int:
        """Messages that Broker's format cannot express."""
        return self._unwritten.count

    def _give(self) -> None:
        """Subscribe at the hub to the topics of the peer's filter."""
        topics = frozenset(topic for topic in self.topics if not is_reserved(topic))
        previous, self._subscribed = self._subscribed, topics
        if topics - previous:
            self._hub.add_receiver(self, sorted(topics - previous), sees_own=True)
        if previous - topics:
            self._hub.remove_receiver(self, sorted(previous - topics))

    def _give_nothing(self) -> None:
        """Remove all of this peer's subscriptions from the hub."""
        self._subscribed = frozenset()
        self._hub.remove_receiver(self)

    def _own_ttl(self) -> int:
        """Return the TTL of messages that this endpoint publishes."""
        return min(self._hub.core.ttl, _TTL_HIGHEST)

    def take_own(self, run: Sequence[Pair]) -> None:
        """Send messages that this endpoint published."""
        messages = [(pair[0], content_of(pair)) for pair in run]
        self._send(messages, self._own_ttl(), self._hub.runtime.node_id)

    def take_within(self, ttl: int, sender: bytes, items: list[Item], _size: int) -> None:
        """Forward messages of others while their TTL allows another link."""
        if ttl > 0 and self._hub.options.forwards:
            messages = [(topic, python_to_cbor(value)) for topic, value in items]
            self._send(messages, min(ttl, _TTL_HIGHEST), sender)

    def take_from(self, sender: bytes, items: list[Item], size: int) -> None:
        """Forward messages that arrived without a TTL."""
        self.take_within(self._hub.core.ttl, sender, items, size)

    def _send(self, run: list[tuple[str, bytes]], ttl: int, sender: bytes) -> None:
        """Encode values and send them."""
        raise NotImplementedError

    def _written(self, run: list[tuple[str, bytes]]) -> Iterator[tuple[str, bytes]]:
        """Yield messages with their values in Broker's encoding.

        Messages that Broker's format cannot express are counted and left out.
        """
        for topic, content in run:
            if not is_reserved(topic):
                try:
                    yield topic, broker_from_cbor(content)
                except EndpointError as error:
                    self._unwritten.add(self.name, topic, error)


class BrokerPeering(Closing):
    """All peerings of one endpoint on one wire; see `Endpoint.peer` and `Endpoint.listen`."""

    def __init__(self, hub: Hub, tls: TlsSource | None) -> None:
        """Create a peering without ports and dials.

        Args:
            hub: the hub of the node.
            tls: as for Broker; None for plain connections.
        """
        self._certificates = None if tls is None else Certificates(tls, hub.runtime.report)
        self._hub = hub
        self._foreign = hub.node.overlay.foreign
        self._ports: list[ForeignPort] = []
        self._dials: dict[Endpoint, ForeignDial] = {}

    def listen(
        self, address: str, port: int, *, is_guarded: bool = False, insecure: bool = False
    ) -> int:
        """Accept peers on a port, and return the port.

        Args:
            address: local address.
            port: 0 picks a free one.
            is_guarded: whether peers must present certificates.
            insecure: allow a public address although peers are not authenticated.

        Raises:
            PublicAddress: other machines can reach the address, and peers are not
                authenticated.
            TlsError: a file for TLS is unusable.
            PortUnavailable: the address is not local, or the port is in use.
        """
        if not insecure:  # TLS authenticates a client only if the client has a certificate
            refuse_unguarded(address, is_guarded=is_guarded)
        listener = self._foreign.listen(
            self,
            address,
            port,
            tls=self._certificates,
            is_guarded=is_guarded,
            insecure=True,
            limits=self._foreign.limits,
            patience=HANDSHAKE_LIMIT,
        )
        self._ports.append(listener)
        number: int = listener.port
        return number

    def peer(self, address: Endpoint, retry: float) -> Future[bool]:
        """Peer with the program at an address.

        The future is true once both sides know each other's topics.

        Args:
            address: host and port.
            retry: longest pause between attempts, in seconds; 0 tries once.
        """
        done: Future[bool] = Future()
        dial = self._dials.get(address)
        if dial is None or dial.is_stopped:
            dial = self._foreign.dial(self, address, retry=retry, tls=self._certificates)
            self._dials[address] = dial

        def ended(linked: Future[ForeignLink]) -> None:
            error = linked.exception()
            if error is None:
                self._linked(linked.result(), done)
                return
            if not retry:  # a dial that retries logs its failures itself
                _log.warning("%s", error)
            done.set_result(False)

        dial.linked.add_done_callback(ended)
        return done

    def _linked(self, link: ForeignLink, done: Future[bool]) -> None:
        """Resolve `done` once the peer has our filter and the hub follows the peer's."""
        raise NotImplementedError

    def unpeer(self, address: Endpoint) -> Future[bool] | None:
        """Stop dialing an address; the future is done when the peering has ended.

        Returns:
            None if the address is not dialed on this wire.
        """
        dial = self._dials.pop(address, None)
        if dial is None or dial.is_stopped:
            return None
        done: Future[bool] = Future()
        self._leave(dial, done)
        return done

    def _leave(self, dial: ForeignDial, done: Future[bool]) -> None:
        """End a dialed peering; resolve `done` after its end was reported."""
        raise NotImplementedError

    def _stop(self) -> bool:
        """Close all dials and ports; return whether there were any."""
        dials, self._dials = self._dials, {}
        ports, self._ports = self._ports, []
        for dial in dials.values():
            self._foreign.stop(dial)
        for port in ports:
            self._foreign.close_port(port, "the endpoint is closed")
        return bool(dials or ports)

    def _redial(self, reason: str, *, but: ForeignDial | None = None) -> None:
        """Resume dials that had yielded to a connection which has now ended."""
        for dial in list(self._dials.values()):
            if dial.link is None and dial is not but:
                self._foreign.redial(dial, reason)
