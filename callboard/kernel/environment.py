"""What a node stands on: its runner, its network, its identity, and Thespian's system base."""

from callboard.actors.cell import short_turns
from callboard.actors.runner.loop import LoopRunner, RunnerLoop, current_task_cleared
from callboard.actors.runner.runner import CELLS_A_TURN, Runnable
from callboard.actors.thespian.cell import Creation
from callboard.actors.thespian.creator import is_compatible
from callboard.actors.thespian.neighbors import Neighbors
from callboard.actors.thespian.system import SystemBase
from callboard.basp.header import HEADER, HEADER_SIZE, RESPONSE, Operation
from callboard.proxies.surroundings import Surroundings, real_surroundings
from callboard.proxies.workers.class_source import ClassSource, load_class, source_of

__all__ = [
    "Creation",
    "Neighbors",
    "SystemBase",
    "is_compatible",
    "CELLS_A_TURN",
    "ClassSource",
    "HEADER",
    "HEADER_SIZE",
    "LoopRunner",
    "Operation",
    "RESPONSE",
    "Runnable",
    "RunnerLoop",
    "Surroundings",
    "current_task_cleared",
    "load_class",
    "real_surroundings",
    "short_turns",
    "source_of",
]
