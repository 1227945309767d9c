"""Checks of arguments: numbers, times, names, refs."""

from callboard.actors.errors import require as require
from callboard.actors.errors import wrong_argument as wrong_argument
from callboard.actors.reference import checked_ref as checked_ref
from callboard.actors.seconds import count as count
from callboard.actors.seconds import limit as limit
from callboard.actors.seconds import period as period
from callboard.actors.seconds import seconds as seconds
from callboard.proxies.address import check_name as check_name
