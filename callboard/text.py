"""The public part of `callboard.support.text`: texts that are safe for a log or a terminal."""

from callboard.support.text import printable

__all__ = ["printable"]
