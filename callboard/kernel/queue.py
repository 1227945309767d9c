"""Bounds of queues, overflow policies and back-pressure."""

from callboard.actors.mailbox import BackPressure as BackPressure
from callboard.actors.mailbox import Mailbox as Mailbox
from callboard.actors.mailbox import SendTurn as SendTurn
from callboard.actors.mailbox import may_wait as may_wait
