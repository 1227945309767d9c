"""The shutdown of a node: its phases and deadlines."""

from callboard.actors.waits.shutdown import Deadline as Deadline
from callboard.actors.waits.shutdown import Phase as Phase
from callboard.proxies.messages import DRAIN_TIMEOUT as DRAIN_TIMEOUT
