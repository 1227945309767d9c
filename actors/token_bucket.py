"""Token buckets: how much of something a second may bring, and what waits beyond. Pure."""


class TokenBucket:
    """Counts what is spent against what a second brings; a burst may be saved.

    A rate of 0 is no limit.
    """

    __slots__ = ("_burst", "_since", "_tokens", "rate")

    def __init__(self, rate: float, burst: float | None = None) -> None:
        """Begin with a full bucket.

        Args:
            rate: tokens a second; 0 for no limit.
            burst: tokens that may be saved; a second's worth by default, and at least one.
        """
        self.rate = rate
        self._burst = max(rate, 1.0) if burst is None else burst
        self._tokens = self._burst
        self._since: float | None = None

    def spend(self, tokens: float, now: float) -> float:
        """Spend tokens, also those that are not there; returns the seconds of debt, or 0."""
        rate = self.rate
        if not rate:
            return 0.0
        passed = 0.0 if self._since is None else now - self._since
        self._since = now
        left = self._tokens = min(self._burst, self._tokens + passed * rate) - tokens
        return 0.0 if left >= 0 else -left / rate

    def allows(self, now: float) -> bool:
        """Return whether one token is there, and spend it if so."""
        if not self.rate:
            return True
        self.spend(0, now)
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    def is_empty(self, now: float) -> bool:
        """Return whether not one whole token is there."""
        self.spend(0, now)
        return bool(self.rate) and self._tokens < 1


class TrafficLimit:
    """How fast one peer may send: a bucket of messages, and one of bytes."""

    __slots__ = ("messages", "octets")

    def __init__(self, message_rate: float, byte_rate: float) -> None:
        """Begin with what may be saved.

        Args:
            message_rate: messages a second; 0 for no limit.
            byte_rate: bytes a second; 0 for no limit.
        """
        self.messages = TokenBucket(message_rate)
        self.octets = TokenBucket(byte_rate)

    def spend(self, messages: int, size: int, now: float) -> float:
        """Spend messages and bytes; returns the seconds until the debt is paid, or 0."""
        return max(self.messages.spend(messages, now), self.octets.spend(size, now))
