"""Futures, promises, senders and replies."""

from callboard.actors.actor import Promise as Promise
from callboard.actors.asking.overdue import due_of as due_of
from callboard.actors.asking.reply import Reply as Reply
from callboard.actors.future import Future as Future
from callboard.actors.future import Pause as Pause
from callboard.actors.future import refuse_endless_wait as refuse_endless_wait
from callboard.actors.future import waiting as waiting
from callboard.actors.reference import Asker as Asker
from callboard.actors.reference import NoReply as NoReply
from callboard.actors.reference import Sender as Sender
from callboard.actors.waits.owned_future import OwnedFuture as OwnedFuture
