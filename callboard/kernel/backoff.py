"""Pauses between attempts."""

from callboard.actors.backoff import Backoff as Backoff
