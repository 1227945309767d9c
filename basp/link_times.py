"""When one link has to say something, and when its peer has been silent for too long.

The parts of a handshake have a time limit each; an identified link has its silence, which
also ends one that waits parked. Heartbeats begin when the peer is identified.
"""

from basp.handshake import LinkConfig
from basp.link_state import LinkState

__all__ = ["LinkTimes"]


class LinkTimes:
    """Time limit and heartbeats of one link; all times are monotonic, in seconds.

    When the peer was heard last is an argument: the link notes it with each read.
    """

    __slots__ = ("_config", "_deadline", "_sent_at")

    def __init__(self, config: LinkConfig, now: float) -> None:
        """Begin with the first part of the handshake."""
        self._config = config
        self._sent_at = now
        self.begin_part(now)

    def begin_part(self, now: float) -> None:
        """Let a part of the handshake begin, which has to end in time."""
        self._deadline: float | None = now + self._config.handshake_timeout

    def end_part(self, now: float) -> None:
        """Await nothing any more: the peer did its part. Heartbeats count from here on."""
        self._deadline = None
        self._sent_at = now

    def is_heartbeat_due(self, state: LinkState, now: float) -> bool:
        """Tell whether it is time for a heartbeat."""
        return _beats(state) and now - self._sent_at >= self._config.heartbeat

    def heartbeat_sent(self, now: float) -> None:
        """Count the interval to the next heartbeat from here on."""
        self._sent_at = now

    def overdue(self, state: LinkState, now: float, heard_at: float) -> str | None:
        """Return what took too long; None while nothing did."""
        config = self._config
        if self._deadline is not None and now >= self._deadline:
            return f"handshake took longer than {config.handshake_timeout:g} s"
        silence = now - heard_at
        if state is not LinkState.INTRODUCING and silence >= config.missed * config.heartbeat:
            return f"silent for {silence:.1f} s, {config.missed} heartbeats"
        return None

    def next_at(self, state: LinkState, heard_at: float) -> float:
        """Return the time at which something is overdue, or a heartbeat due."""
        config = self._config
        times = [] if self._deadline is None else [self._deadline]
        if state is not LinkState.INTRODUCING:
            times.append(heard_at + config.missed * config.heartbeat)
        if _beats(state):
            times.append(self._sent_at + config.heartbeat)
        return min(times)


def _beats(state: LinkState) -> bool:
    # While we await the ack, a heartbeat would pass for the proof that we have it.
    return state is not LinkState.INTRODUCING and state is not LinkState.AWAIT_ACK
