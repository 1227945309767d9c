"""Closable objects, and blocking calls with an awaitable twin."""

from callboard.actors.closing import Closing, on_a_thread, refuse_loop, twin

__all__ = ["Closing", "on_a_thread", "refuse_loop", "twin"]
