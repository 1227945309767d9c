"""Token buckets: rate limits with bursts. Pure."""


class TokenBucket:
    """A token bucket: it fills at a rate, up to a burst.

    A rate of 0 is unlimited.
    """

    __slots__ = ("_burst", "_since", "_tokens", "rate")

    def __init__(self, rate: float, burst: float | None = None) -> None:
        """Start with a full bucket.

        Args:
            rate: tokens per second; 0 for no limit.
            burst: capacity; by default the tokens of one second, but at least one.
        """
        self.rate = rate
        self._burst = max(rate, 1.0) if burst is None else burst
        self._tokens = self._burst
        self._since: float | None = None

    def spend(self, tokens: float, now: float) -> float:
        """Spend tokens, on debt if needed; return the seconds until the debt is paid, or 0."""
        rate = self.rate
        if not rate:
            return 0.0
        passed = 0.0 if self._since is None else now - self._since
        self._since = now
        left = self._tokens = min(self._burst, self._tokens + passed * rate) - tokens
        return 0.0 if left >= 0 else -left / rate

    def allows(self, now: float) -> bool:
        """Spend one token if available; return whether it was."""
        if not self.rate:
            return True
        self.spend(0, now)
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    def is_empty(self, now: float) -> bool:
        """Return whether less than one token is available."""
        self.spend(0, now)
        return bool(self.rate) and self._tokens < 1


class TrafficLimit:
    """Rate limit of one peer: a bucket of messages and a bucket of bytes."""

    __slots__ = ("messages", "octets")

    def __init__(self, message_rate: float, byte_rate: float) -> None:
        """Start with full buckets.

        Args:
            message_rate: messages per second; 0 for no limit.
            byte_rate: bytes per second; 0 for no limit.
        """
        self.messages = TokenBucket(message_rate)
        self.octets = TokenBucket(byte_rate)

    def spend(self, messages: int, size: int, now: float) -> float:
        """Spend messages and bytes; return the seconds until the debt is paid, or 0."""
        return max(self.messages.spend(messages, now), self.octets.spend(size, now))
