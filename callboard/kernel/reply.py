"""Futures, promises, senders and replies."""

from callboard.actors.actor import Promise
from callboard.actors.asking.overdue import due_of
from callboard.actors.asking.reply import MessageSender, Reply
from callboard.actors.future import Future, Pause, refuse_endless_wait, waiting
from callboard.actors.reference import Asker, Sender
from callboard.actors.waits.owned_future import OwnedFuture

__all__ = [
    "MessageSender",
    "Reply",
    "Asker",
    "Future",
    "OwnedFuture",
    "Pause",
    "Promise",
    "Sender",
    "due_of",
    "refuse_endless_wait",
    "waiting",
]
