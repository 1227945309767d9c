"""The shutdown of a node: its phases and deadlines."""

from callboard.actors.waits.shutdown import Deadline, Phase
from callboard.proxies.messages import DRAIN_TIMEOUT

__all__ = [
    "DRAIN_TIMEOUT",
    "Deadline",
    "Phase",
]
