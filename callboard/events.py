"""The events of `node.events()` and `node.subscribed()`, as dataclasses."""

from dataclasses import is_dataclass
from typing import TYPE_CHECKING

from callboard.actors.events import *  # noqa: F403 - all events of a package are public
from callboard.entity.inspection.events import *  # noqa: F403
from callboard.proxies.events import *  # noqa: F403
from callboard.proxies.messages import Drained as Drained
from callboard.store.store_actor import CommandsRefused as CommandsRefused
from callboard.topics.events import *  # noqa: F403

if not TYPE_CHECKING:  # type checkers use the imports instead
    __all__ = [name for name, value in globals().items() if is_dataclass(value)]
