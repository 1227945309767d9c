"""How fast a client may send: two token buckets, of packets and of bytes."""


class Limiter:
    """Counts what is spent against what a second brings; a second's worth may be saved.

    A rate of 0 is no limit.
    """

    __slots__ = ("_burst", "_bytes", "_byte_rate", "_packet_rate", "_packets", "_since")

    def __init__(
        self, packet_rate: float, byte_rate: float, *, burst: float | None = None
    ) -> None:
        """Begin with what may be saved.

        Args:
            packet_rate: packets a second.
            byte_rate: bytes a second.
            burst: packets that may be saved; a second's worth by default, and at least one.
        """
        self._burst = max(packet_rate, 1.0) if burst is None else burst
        self._packet_rate = packet_rate
        self._byte_rate = byte_rate
        self._packets = self._burst
        self._bytes = byte_rate
        self._since: float | None = None

    def allows(self, now: float) -> bool:
        """Whether one packet more is within the rate; spends it if so."""
        if not self._packet_rate:
            return True
        self.spend(0, 0, now)
        if self._packets < 1:
            return False
        self._packets -= 1
        return True

    def owes(self, now: float) -> bool:
        """Whether more packets were spent than the rate brought."""
        self.spend(0, 0, now)
        return bool(self._packet_rate) and self._packets < 0

    def spend(self, packets: int, size: int, now: float) -> float:
        """Spend packets and bytes; returns the seconds until the debt is paid, 0 for none."""
        passed = 0.0 if self._since is None else now - self._since
        self._since = now
        wait = 0.0
        if self._packet_rate:
            rate = self._packet_rate
            self._packets = min(self._burst, self._packets + passed * rate) - packets
            wait = -self._packets / rate
        if self._byte_rate:
            rate = self._byte_rate
            self._bytes = min(rate, self._bytes + passed * rate) - size
            wait = max(wait, -self._bytes / rate)
        return max(wait, 0.0)
