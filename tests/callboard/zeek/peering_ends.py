"""Two sessions of Broker 2.x on one wire, and the sessions that were recorded."""

from pathlib import Path

from callboard.basp.foreign import Admitted, Arrived
from callboard.basp.link import Closed, Transmit
from callboard.zeek.peering import PeeringSession

RECORDED = Path(__file__).parent / "recorded"

#: Of the real endpoint that was recorded; of who peered with it.
REAL = bytes.fromhex("1e6c007e29135f7f82383c74f7bb125f")
SMALL = bytes.fromhex("00000000000040008000000000000000")
LARGE = bytes.fromhex("ffffffffffff4fffbfffffffffffffff")


def recording(name):
    """Return the bytes of one side of a recorded session."""
    return (RECORDED / f"{name}.bin").read_bytes()


def frames_of(stream):
    """Return the frames of a stream, each with its length."""
    found = []
    while stream:
        end = 4 + int.from_bytes(stream[:4])
        found.append(stream[:end])
        stream = stream[end:]
    return found


class End:
    """One end of a wire: a session, its requests, and the arrivals."""

    def __init__(self, own=SMALL, topics=(), *, is_dialed, known=None, now=0.0):
        self.known = {} if known is None else known
        self.now = now
        self.out = b""
        self.messages = []
        self.admitted = None
        self.closed = None
        self.session = PeeringSession(own, lambda: topics, self.known, now, is_dialed=is_dialed)
        self.carry_out(self.session.start())

    def carry_out(self, effects):
        for effect in effects:
            assert self.closed is None, "nothing follows the end"
            if isinstance(effect, Transmit):
                self.out += effect.data
            elif isinstance(effect, Arrived):
                self.messages += effect.messages
            elif isinstance(effect, Admitted):
                self.admitted = effect
            else:
                assert isinstance(effect, Closed)
                self.closed = effect

    def feed(self, data, piece=65536):
        for at in range(0, len(data), piece):
            found, effects = self.session.take(data[at : at + piece], self.now)
            assert not (found and effects)
            self.messages += found
            self.carry_out(effects)

    def tick(self, now):
        self.now = now
        self.carry_out(self.session.tick(now))

    def take_out(self):
        out, self.out = self.out, b""
        return out


def settle(one, other, piece=65536):
    """Carry bytes between two ends until both are silent."""
    while one.out or other.out:
        for here, there in ((one, other), (other, one)):
            data = here.take_out()
            if there.closed is None:
                there.feed(data, piece)


def pair(small_dials=True, topics=((), ()), ids=(SMALL, LARGE)):
    """Return two peered ends, the one with the smaller id first."""
    small = End(ids[0], topics[0], is_dialed=small_dials)
    large = End(ids[1], topics[1], is_dialed=not small_dials)
    settle(small, large)
    return small, large
