"""The environment of a node: runner, network and identity; and Thespian's system base."""

from callboard.actors.cell import short_turns as short_turns
from callboard.actors.runner.loop import LoopRunner as LoopRunner
from callboard.actors.runner.loop import RunnerLoop as RunnerLoop
from callboard.actors.runner.loop import current_task_cleared as current_task_cleared
from callboard.actors.runner.runner import Runnable as Runnable
from callboard.actors.runner.turnwise import TurnwiseRunner as TurnwiseRunner
from callboard.actors.runtime import Runtime as Runtime
from callboard.actors.thespian.cell import Creation as Creation
from callboard.actors.thespian.creator import is_compatible as is_compatible
from callboard.actors.thespian.neighbors import Neighbors as Neighbors
from callboard.actors.thespian.system import SystemBase as SystemBase
from callboard.basp.frame import frame_words as frame_words
from callboard.proxies.environment import NodeEnvironment as NodeEnvironment
from callboard.proxies.environment import real_surroundings as real_surroundings
from callboard.proxies.workers.class_source import ClassSource as ClassSource
from callboard.proxies.workers.class_source import load_class as load_class
from callboard.proxies.workers.class_source import source_of as source_of
