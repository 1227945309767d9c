"""Bounded queues: what fits, what happens when nothing does, and how fast it may come."""

from callboard.actors.mailbox import BackPressure, Mailbox, may_wait
from callboard.actors.token_bucket import TokenBucket, TrafficLimit

__all__ = ["BackPressure", "Mailbox", "TokenBucket", "TrafficLimit", "may_wait"]
