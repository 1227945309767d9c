"""The environment of a node: runner, network and identity; and Thespian's system base."""

from callboard.actors.cell import short_turns
from callboard.actors.runner.loop import LoopRunner, RunnerLoop, current_task_cleared
from callboard.actors.runner.runner import Runnable
from callboard.actors.runner.turnwise import TurnwiseRunner
from callboard.actors.runtime import Runtime
from callboard.actors.thespian.cell import Creation
from callboard.actors.thespian.creator import is_compatible
from callboard.actors.thespian.neighbors import Neighbors
from callboard.actors.thespian.system import SystemBase
from callboard.basp.frame import frame_words
from callboard.proxies.environment import NodeEnvironment, real_surroundings
from callboard.proxies.workers.class_source import ClassSource, load_class, source_of

__all__ = [
    "Creation",
    "Neighbors",
    "SystemBase",
    "TurnwiseRunner",
    "frame_words",
    "is_compatible",
    "ClassSource",
    "LoopRunner",
    "Runnable",
    "RunnerLoop",
    "Runtime",
    "NodeEnvironment",
    "current_task_cleared",
    "load_class",
    "real_surroundings",
    "short_turns",
    "source_of",
]
