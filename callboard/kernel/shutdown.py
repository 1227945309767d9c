"""The end of a node: its phases, steps and the time that is left."""

from callboard.actors.waits.shutdown import Deadline, Phase
from callboard.proxies.messages import DRAIN_TIMEOUT

__all__ = [
    "DRAIN_TIMEOUT",
    "Deadline",
    "Phase",
]
