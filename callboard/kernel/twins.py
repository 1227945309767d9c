"""Calls that have an awaitable twin, and objects that are closed."""

from callboard.actors.closing import Closing, on_a_thread, refuse_loop

__all__ = ["Closing", "on_a_thread", "refuse_loop"]
