"""All errors of actors and nodes; each is a `CallboardError`."""

from callboard.actors.errors import *  # noqa: F403 - all of them may reach a package
from callboard.actors.refusal import Refusal as Refusal
from callboard.proxies.errors import *  # noqa: F403
