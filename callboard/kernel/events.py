"""All events of actors and nodes, which `NodeContext.report` sends to `node.subscribed()`."""

from callboard.actors.events import *  # noqa: F403 - all of them may reach a package
from callboard.proxies.events import *  # noqa: F403
