"""The end of a node: its phases, steps and the time that is left."""

from callboard.actors.waits.shutdown import STEP_SECONDS, CloseStep, Deadline, Phase
from callboard.proxies.messages import DRAIN_TIMEOUT

__all__ = ["CloseStep", "DRAIN_TIMEOUT", "Deadline", "Phase", "STEP_SECONDS"]
