"""Bounds of queues, overflow policies, back-pressure and rate limits."""

from callboard.actors.mailbox import BackPressure as BackPressure
from callboard.actors.mailbox import Mailbox as Mailbox
from callboard.actors.mailbox import SendTurn as SendTurn
from callboard.actors.mailbox import may_wait as may_wait
from callboard.actors.token_bucket import TokenBucket as TokenBucket
from callboard.actors.token_bucket import TrafficLimit as TrafficLimit
