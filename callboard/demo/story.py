"""The demo's story: its options, its timeline, and the consequences of blows.

Pure: times are arguments.
"""

from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

#: Default duration of the demo in seconds.
SECONDS: Final = 30.0

#: Environment variable with the folder of the analysis, for the nodes; unset without analysis.
ANALYSIS: Final = "CALLBOARD_DEMO_ANALYSIS"
#: The kill of C and its restart, as fractions of the story.
KILL_AT: Final = 15.0 / SECONDS
RESTART_AT: Final = 18.0 / SECONDS

#: Seconds until a node that the user killed restarts.
RESTART_AFTER: Final = 3.0

#: The node that the story kills, and the node that A then cannot reach.
KILLED: Final = "C"
FAR: Final = "D"

Blow = Literal["kill", "freeze", "thaw", "cut"]


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """The options of one run.

    Attributes:
        seconds: duration of the story; the times of the kill and the restart scale with it.
        forever: whether to run without a story, until a key or signal ends it.
        as_json: whether to print only the final summary, as JSON.
        plain: whether to print plain lines even in a terminal.
    """

    seconds: float = SECONDS
    forever: bool = False
    as_json: bool = False
    plain: bool = False


class Step(NamedTuple):
    """A scripted action on a node."""

    action: Literal["kill", "start"]
    node: str


class Timeline:
    """The schedule of steps, in seconds since the line was complete."""

    def __init__(self, seconds: float | None) -> None:
        """Create the timeline; `seconds` is the duration, None for no steps and no end."""
        self._end = seconds
        self._steps: list[tuple[float, Step]] = []
        if seconds is not None:
            self._steps = [
                (seconds * KILL_AT, Step("kill", KILLED)),
                (seconds * RESTART_AT, Step("start", KILLED)),
            ]

    def due(self, now: float) -> list[Step]:
        """Return and remove the due steps."""
        steps = [step for start, step in self._steps if start <= now]
        self._steps = [(start, step) for start, step in self._steps if start > now]
        return steps

    def next_at(self) -> float | None:
        """Return the time of the next step or of the end."""
        times = [start for start, _ in self._steps]
        if self._end is not None:
            times.append(self._end)
        return min(times, default=None)

    def is_over(self, now: float) -> bool:
        """Return whether the story has ended."""
        return self._end is not None and now >= self._end

    def restart(self, node: str, now: float) -> None:
        """Schedule a restart of a node, unless one is scheduled."""
        if not self.will_start(node):
            self._steps.append((now + RESTART_AFTER, Step("start", node)))

    def will_start(self, node: str) -> bool:
        """Return whether a start of the node is scheduled."""
        return any(step == Step("start", node) for _, step in self._steps)


@dataclass(slots=True)
class Incident:
    """One blow, and the times of the reactions to it, in monotonic nanoseconds.

    Milestones, each the first after the blow:
        down: the overseer on A handled the `Down` of a sensor on D, three hops away.
        down_far: a sensor on D handled the `Down` of the overseer on A, three hops away.
        unreachable: A lost its last path to D.
        lost: the overseer handled the `Down` of the aggregator.
        respawned: the overseer spawned another aggregator.
        serving: the new aggregator handled its first reading.
        restarted: the killed node was restarted.
        rejoined: A had a path to D again.
        reopened: the master of the store had reopened its file.
        resumed: D's sensors were notified of the aggregator.
        peaks: all daily peaks of the killed node answered again on another node.
    """

    blow: Blow
    target: str
    at_ns: int
    is_scripted: bool = False
    milestones: dict[str, int] = field(default_factory=dict)

    def reach(self, milestone: str, at_ns: int) -> None:
        """Record a milestone, if it is the first of its kind after the blow."""
        if at_ns >= self.at_ns:
            self.milestones.setdefault(milestone, at_ns)

    def ms(self, milestone: str) -> float | None:
        """Return the milliseconds from the blow to a milestone; None if it was not reached."""
        at_ns = self.milestones.get(milestone)
        return None if at_ns is None else (at_ns - self.at_ns) / 1e6


#: Kind of note → its milestone, the required reporter, and the required subject; "" is any.
_MILESTONES: Final = {
    "sensor_down": ("down", "A", FAR),
    "overseer_down": ("down_far", FAR, ""),
    "NodeDown": ("unreachable", "A", FAR),
    "NodeUp": ("rejoined", "A", FAR),
    "aggregator_down": ("lost", "A", ""),
    "spawned": ("respawned", "A", ""),
    "sensors_found": ("resumed", "A", ""),
    "serving": ("serving", "", ""),
    "master_open": ("reopened", "", ""),
    "peaks_back": ("peaks", "A", ""),
}


class Chronicle:
    """All blows of a run, with their consequences."""

    def __init__(self) -> None:
        self.incidents: list[Incident] = []

    def strike(
        self, blow: Blow, target: str, at_ns: int, *, is_scripted: bool = False
    ) -> Incident:
        """Start an incident; later notes belong to it."""
        incident = Incident(blow, target, at_ns, is_scripted)
        self.incidents.append(incident)
        return incident

    def note(self, reporter: str, note: dict[str, Any]) -> None:
        """Record a note of a node."""
        milestone, required_reporter, prefix = _MILESTONES.get(note["kind"], ("", "", ""))
        subject = note.get("sensor") or note.get("name") or ""
        incident = self.at(note["at"])
        if (
            milestone
            and incident
            and required_reporter in ("", reporter)
            and subject.startswith(prefix)
        ):
            incident.reach(milestone, note["at"])

    @property
    def has_healed(self) -> bool:
        """Whether all milestones of the scripted blow were reached, if there was one."""
        required = {milestone for milestone, _, _ in _MILESTONES.values()} | {"restarted"}
        return all(
            required <= incident.milestones.keys()
            for incident in self.incidents
            if incident.is_scripted
        )

    def at(self, at_ns: int) -> Incident | None:
        """Return the latest incident that started before a moment."""
        return next(
            (incident for incident in reversed(self.incidents) if incident.at_ns <= at_ns), None
        )

    def headline(self) -> Incident | None:
        """Return the incident for the last line: the scripted one, or else the latest one."""
        measured = [incident for incident in self.incidents if "down" in incident.milestones]
        scripted = [incident for incident in measured if incident.is_scripted]
        return next(reversed(scripted or measured), None)
