"""All errors that callboard raises in the code of its users, each a `CallboardError`."""

from typing import TYPE_CHECKING

from callboard.actors.errors import *  # noqa: F403 - all errors of a package are public
from callboard.actors.errors import CallboardError
from callboard.entity.errors import *  # noqa: F403
from callboard.lease.errors import *  # noqa: F403
from callboard.model.errors import *  # noqa: F403
from callboard.proxies.errors import *  # noqa: F403
from callboard.store.errors import *  # noqa: F403

if not TYPE_CHECKING:  # type checkers use the imports instead
    __all__ = [
        name
        for name, value in globals().items()
        if isinstance(value, type) and issubclass(value, CallboardError)
    ]
