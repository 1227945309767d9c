"""Two or more nodes and their connections in memory; the test sets the time."""

from callboard.basp.frame import FrameReader
from callboard.basp.handshake import LinkConfig
from callboard.basp.header import HEADER_SIZE
from callboard.basp.link import (
    Closed,
    Deliver,
    Effect,
    Established,
    Link,
    LinkPairs,
    LinkState,
    Parked,
    Redundant,
    Seal,
    Transmit,
    Wake,
)
from callboard.basp.node_id import NodeId
from callboard.basp.routing.update import join_update, write_name, write_rest, write_vector
from callboard.basp.seal import Opener, Sealer

A = NodeId(b"a" * 18)
B = NodeId(b"b" * 18)


def write_update(announced, withdrawn, cuts=(), statements=(), names=()) -> bytes:
    """Write the payload of a routing update whole."""
    vectors = [write_vector(vector.path, vector.stamps) for vector in announced]
    rest = write_rest(withdrawn, cuts, statements)
    return join_update(vectors, rest, [write_name(name) for name in names])


def receive(link: Link, data: bytes, now: float) -> list[Effect]:
    """Pass bytes to a link; return its effects, including a run of dispatches."""
    frames, effects = link.take(data, now)
    return [Deliver(frames)] if frames else effects


def held_bytes(reader: FrameReader) -> int:
    """Count the bytes that wait for the rest of their frame."""
    unfinished = HEADER_SIZE + sum(map(len, reader._pieces)) if reader._missing else 0
    return len(reader._head) + unfinished


class End:
    """One end of a connection with the state of its driver."""

    def __init__(
        self, config: LinkConfig, pairs: LinkPairs, dialer: bool, serial: int, now: float
    ) -> None:
        nonce = bytes([serial]) * 15 + bytes([dialer])
        self.link = Link(config, dialer=dialer, nonce=nonce, now=now, pairs=pairs)
        self.incoming: list[bytes] = []
        self.events: list[Effect] = []
        self.other: End
        self.is_cut = False
        self.sealer: Sealer | None = None
        self.opener: Opener | None = None
        #: Data that was written to the connection.
        self.sent: list[bytes] = []

    def names(self) -> list[str]:
        return [type(event).__name__ for event in self.events]

    @property
    def closed(self) -> Closed | None:
        return next((e for e in self.events if isinstance(e, Closed)), None)


class Wire:
    """Drives the links: every Transmit is queued for the other end."""

    def __init__(self, configs: dict[NodeId, LinkConfig], dials: list[tuple[NodeId, NodeId]]):
        self.now = 0.0
        self.pairs = {node: LinkPairs() for node in configs}
        self.ends: list[End] = []
        self.configs = configs
        for dialer, acceptor in dials:
            self.dial(dialer, acceptor)

    def dial(self, dialer: NodeId, acceptor: NodeId) -> tuple[End, End]:
        serial = len(self.ends)
        first = End(self.configs[dialer], self.pairs[dialer], True, serial, self.now)
        second = End(self.configs[acceptor], self.pairs[acceptor], False, serial, self.now)
        first.other, second.other = second, first
        self.ends += [first, second]
        for end in (first, second):
            self.carry_out(end, end.link.start())
        return first, second

    def carry_out(self, end: End, effects: list[Effect]) -> None:
        wakes: list[Link] = []
        for effect in effects:
            end.events.append(effect)
            if isinstance(effect, Transmit):
                self.send(end, effect.data)
            elif isinstance(effect, Seal):
                end.sealer, end.opener = effect.sealer, effect.opener
            elif isinstance(effect, Wake):
                wakes.append(effect.link)
            elif isinstance(effect, Closed):
                if not end.is_cut:
                    end.other.incoming.append(b"")
            else:
                assert isinstance(effect, (Established, Deliver, Parked, Redundant))
        for link in wakes:
            woken = next(e for e in self.ends if e.link is link)
            self.carry_out(woken, woken.link.resume(self.now))

    def send(self, end: End, data: bytes) -> None:
        """Send bytes as a driver does, sealed if the link is."""
        if end.sealer is not None:
            data = end.sealer.seal_all(data)
        end.sent.append(data)
        if not end.is_cut and not end.other.closed:
            end.other.incoming.append(data)

    def deliver(self, end: End) -> None:
        data = end.incoming.pop(0)
        if data == b"":
            effects = end.link.lost("end of stream")
        else:
            effects = receive(end.link, data, self.now)
        self.carry_out(end, effects)

    def cut(self, end: End) -> None:
        """Lose the connection silently: nothing more arrives at either end."""
        for side in (end, end.other):
            side.is_cut = True
            side.incoming.clear()

    def break_off(self, end: End) -> None:
        """Lose the connection; both ends read the end of stream after the data in transit."""
        for side in (end, end.other):
            side.is_cut = True
            side.incoming.append(b"")

    def settle(self, seconds: float = 0.0, step: float = 0.5) -> None:
        until = self.now + seconds
        while True:
            while ready := [end for end in self.ends if end.incoming]:
                self.deliver(ready[0])
                self.check()
            if self.now >= until:
                return
            self.now += step
            for end in self.ends:
                self.carry_out(end, end.link.tick(self.now))
                self.check()

    def established(self) -> list[End]:
        return [end for end in self.ends if end.link.state is LinkState.ESTABLISHED]

    def check(self) -> None:
        """At most one link for each pair and node, always."""
        up = [end.link._config.node_id for end in self.established()]
        assert len(up) == len(set(up)), [end.link.state for end in self.ends]

    def state(self) -> tuple[object, ...]:
        """Identify this state among all that an exhaustive search meets."""
        order = {id(end.link): index for index, end in enumerate(self.ends)}
        parked = tuple(
            tuple(order[id(link)] for link in pairs.parked(peer))
            for pairs, peer in zip(self.pairs.values(), (B, A), strict=False)
        )
        holders = tuple(
            order.get(id(pairs.holder(peer)))
            for pairs, peer in zip(self.pairs.values(), (B, A), strict=False)
        )
        ends = tuple(
            (end.link.state, end.link.is_confirmed, tuple(end.incoming), end.is_cut)
            for end in self.ends
        )
        return ends, parked, holders


def empty_lists(count: int) -> bytes:
    """Return the CBOR of a list of empty lists, 65,536 or more; quickly made."""
    return b"\x9a" + count.to_bytes(4, "big") + b"\x80" * count
