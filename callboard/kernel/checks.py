"""Checks of arguments: numbers, times, names, refs."""

from callboard.actors.errors import require, wrong_argument
from callboard.actors.reference import checked_ref
from callboard.actors.seconds import count, limit, period, seconds
from callboard.proxies.address import check_name

__all__ = [
    "check_name",
    "checked_ref",
    "count",
    "limit",
    "period",
    "require",
    "seconds",
    "wrong_argument",
]
