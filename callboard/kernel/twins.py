"""Closable objects, and blocking calls with an awaitable twin."""

from callboard.actors.closing import Closing as Closing
from callboard.actors.closing import on_a_thread as on_a_thread
from callboard.actors.closing import refuse_loop as refuse_loop
from callboard.actors.closing import twin as twin
