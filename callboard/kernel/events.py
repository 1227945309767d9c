"""Every event of actors and nodes, as `NodeContext.report` takes and `listen` gives them."""

from callboard.actors.events import *  # noqa: F403 - all of them may reach a package
from callboard.proxies.events import *  # noqa: F403
