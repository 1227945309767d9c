"""Bounds of queues, overflow policies, back-pressure and rate limits."""

from callboard.actors.mailbox import BackPressure, Mailbox, may_wait
from callboard.actors.token_bucket import TokenBucket, TrafficLimit

__all__ = ["BackPressure", "Mailbox", "TokenBucket", "TrafficLimit", "may_wait"]
