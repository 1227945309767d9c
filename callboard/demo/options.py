"""What the user may choose about the demo."""

from dataclasses import dataclass
from typing import Final

SECONDS: Final = 30.0
"""How long the demo plays unless it is told otherwise."""

ANALYSIS: Final = "CALLBOARD_DEMO_ANALYSIS"
"""The variable that names the folder of the analysis to the nodes; without it there is none."""

SHORTEST: Final = 4.0
"""Below this many seconds C would end again before D found it."""


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """The choices of one run.

    Attributes:
        seconds: length of the story; the kill and the restart scale with it.
        forever: play no story, end only by key or signal.
        as_json: print nothing but the final summary, as JSON.
        plain: print lines even in a terminal.
    """

    seconds: float = SECONDS
    forever: bool = False
    as_json: bool = False
    plain: bool = False
