"""Pauses between attempts."""

from callboard.actors.backoff import Backoff

__all__ = ["Backoff"]
