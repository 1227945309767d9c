"""Pauses between attempts."""

from callboard.backoff import Backoff as Backoff
