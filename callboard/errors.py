"""Every error that callboard raises at its users; all of them are `CallboardError`."""

from typing import TYPE_CHECKING

from callboard.actors.errors import *  # noqa: F403 - all of a room's errors are its users'
from callboard.actors.errors import CallboardError
from callboard.entity.errors import *  # noqa: F403
from callboard.lease.errors import *  # noqa: F403
from callboard.model.errors import *  # noqa: F403
from callboard.proxies.errors import *  # noqa: F403
from callboard.store.errors import *  # noqa: F403

if not TYPE_CHECKING:  # checkers see it in the imports
    __all__ = [
        name
        for name, value in globals().items()
        if isinstance(value, type) and issubclass(value, CallboardError)
    ]
