"""What the user may choose about the demo."""

from dataclasses import dataclass
from typing import Final

#: How long the demo plays unless it is told otherwise.
SECONDS: Final = 30.0

#: The variable that names the folder of the analysis to the nodes; without it there is none.
ANALYSIS: Final = "CALLBOARD_DEMO_ANALYSIS"


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
