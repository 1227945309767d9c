"""The public part of `callboard.support.text`: names that a log or terminal may show."""

from callboard.support.text import printable

__all__ = ["printable"]
