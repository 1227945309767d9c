"""What peerings of both of Broker's wires share: filters, encoding, ports and dials."""

import logging
from collections.abc import Iterator, Sequence
from typing import Final

from callboard.endpoint.hub import Hub
from callboard.endpoint.machine.effect import DoorReceiver, Item, Pair
from callboard.endpoint.machine.run import content_of
from callboard.endpoint.machine.topic import is_reserved
from callboard.kernel.reply import Future
from callboard.kernel.tls import HANDSHAKE_LIMIT, Certificates, TlsSource, refuse_unguarded
from callboard.kernel.topology import Endpoint
from callboard.kernel.twins import Closing
from callboard.kernel.wire import ForeignDial, ForeignLink, ForeignPort
from callboard.model.encoding import python_to_cbor
from callboard.model.errors import EndpointError
from callboard.zeek.doors.unwritten import UnwrittenMessages
from callboard.zeek.transcoder import broker_from_cbor

_log: Final = logging.getLogger("callboard.zeek")

#: Seconds without reading from a peer while publishers have to wait.
PAUSE: Final = 0.02

#: A TTL has 16 bits.
_TTL_HIGHEST: Final = 0xFFFF


class BrokerNeighbor(DoorReceiver):
    """One peer, and what goes to it: all that its filter has.

    Attributes:
        name: its node or endpoint, as its own programs print it.
        topics: its whole filter.
        brought: messages from it.
        taken: messages to it.
        unwritten: messages that Broker has no form for.
        dropped: messages that found no room.
        commands: commands of stores that it sent; stores do not reach across.
    """

    takes_pairs = True

    def __init__(self, hub: Hub, name: str = "") -> None:
        """Make one that wants nothing yet."""
        self.name = name
        self.topics: tuple[str, ...] = ()
        self.brought = self.taken = self.dropped = self.commands = 0
        self._hub = hub
        self._unwritten = UnwrittenMessages(hub, _log)
        self._given: frozenset[str] = frozenset()

    @property
    def unwritten(self) -> int:
        """Messages that Broker has no form for."""
        return self._unwritten.count

    def _give(self) -> None:
        """Let the hub give what the peer's filter has."""
        wanted = frozenset(topic for topic in self.topics if not is_reserved(topic))
        given, self._given = self._given, wanted
        if wanted - given:
            self._hub.add_receiver(self, sorted(wanted - given), sees_own=True)
        if given - wanted:
            self._hub.remove_receiver(self, sorted(given - wanted))

    def _give_nothing(self) -> None:
        """Let the hub give nothing any more."""
        self._given = frozenset()
        self._hub.remove_receiver(self)

    def _own_ttl(self) -> int:
        """Return the TTL of what this endpoint publishes."""
        return min(self._hub.core.ttl, _TTL_HIGHEST)

    def take_own(self, run: Sequence[Pair]) -> None:
        """Send what this endpoint published."""
        messages = [(pair[0], content_of(pair)) for pair in run]
        self._send(messages, self._own_ttl(), self._hub.runtime.node_id)

    def take_within(self, ttl: int, sender: bytes, items: list[Item], _size: int) -> None:
        """Send what others published, if it may still cross a link."""
        if ttl > 0 and self._hub.options.forwards:
            messages = [(topic, python_to_cbor(value)) for topic, value in items]
            self._send(messages, min(ttl, _TTL_HIGHEST), sender)

    def take_from(self, sender: bytes, items: list[Item], size: int) -> None:
        """Send what came by a way without TTL."""
        self.take_within(self._hub.core.ttl, sender, items, size)

    def _send(self, run: list[tuple[str, bytes]], ttl: int, sender: bytes) -> None:
        """Send values in our encoding."""
        raise NotImplementedError

    def _written(self, run: list[tuple[str, bytes]]) -> Iterator[tuple[str, bytes]]:
        """Return messages with values as Broker writes them, without those that it cannot."""
        for topic, content in run:
            if not is_reserved(topic):
                try:
                    yield topic, broker_from_cbor(content)
                except EndpointError as error:
                    self._unwritten.add(self.name, topic, error)


class BrokerPeering(Closing):
    """All peerings of one endpoint on one wire; see `Endpoint.peer` and `Endpoint.listen`."""

    def __init__(self, hub: Hub, tls: TlsSource | None) -> None:
        """Make one without ports and dials.

        Args:
            hub: of the node.
            tls: as Broker has it; None for plain connections.
        """
        self._certificates = None if tls is None else Certificates(tls, hub.runtime.report)
        self._hub = hub
        self._foreign = hub.node.overlay.foreign
        self._ports: list[ForeignPort] = []
        self._dials: dict[Endpoint, ForeignDial] = {}

    def listen(
        self, address: str, port: int, *, is_guarded: bool = False, insecure: bool = False
    ) -> int:
        """Accept peers on a port; returns it.

        Args:
            address: local address.
            port: 0 picks a free one.
            is_guarded: whether peers have to show certificates.
            insecure: allow an address that other machines reach though peers prove nothing.

        Raises:
            PublicAddress: other machines reach the address, and nothing guards it.
            TlsError: a file for TLS is unusable.
            PortUnavailable: the address is not ours or the port is taken.
        """
        if not insecure:  # TLS without certificates keeps nobody out
            refuse_unguarded(address, is_guarded=is_guarded)
        made = self._foreign.listen(
            self,
            address,
            port,
            tls=self._certificates,
            is_guarded=is_guarded,
            insecure=True,
            limits=self._foreign.limits,
            patience=HANDSHAKE_LIMIT,
        )
        self._ports.append(made)
        number: int = made.port
        return number

    def peer(self, address: Endpoint, retry: float) -> Future[bool]:
        """Peer with who listens at an address; True when both know each other's topics.

        Args:
            address: host and port.
            retry: seconds between attempts at most; 0 tries once.
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
            if not retry:  # dials that go on tell of it themselves
                _log.warning("%s", error)
            done.set_result(False)

        dial.linked.add_done_callback(ended)
        return done

    def _linked(self, link: ForeignLink, done: Future[bool]) -> None:
        """Let `done` be true when the other side has our filter, and its is followed."""
        raise NotImplementedError

    def unpeer(self, address: Endpoint) -> Future[bool] | None:
        """Dial an address no more; the future is done when the peering has ended.

        Returns:
            None where the address is not dialed on this wire.
        """
        dial = self._dials.pop(address, None)
        if dial is None or dial.is_stopped:
            return None
        done: Future[bool] = Future()
        self._leave(dial, done)
        return done

    def _leave(self, dial: ForeignDial, done: Future[bool]) -> None:
        """End the peering with who is dialed; `done` when the news of it was told."""
        raise NotImplementedError

    def _stop(self) -> bool:
        """Dial and listen no more; return whether anything did."""
        dials, self._dials = self._dials, {}
        ports, self._ports = self._ports, []
        for dial in dials.values():
            self._foreign.stop(dial)
        for port in ports:
            self._foreign.close_port(port, "the endpoint is closed")
        return bool(dials or ports)

    def _redial(self, reason: str, *, but: ForeignDial | None = None) -> None:
        """Let dials go on that stood back for a connection which has ended."""
        for dial in list(self._dials.values()):
            if dial.link is None and dial is not but:
                self._foreign.redial(dial, reason)
