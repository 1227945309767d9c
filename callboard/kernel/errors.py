"""Every error of actors and nodes; all of them are `CallboardError`."""

from callboard.actors.errors import *  # noqa: F403 - all of them may reach a package
from callboard.proxies.errors import *  # noqa: F403
