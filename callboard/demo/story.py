"""The demo's story: what the user chooses about it, its timeline, and what a blow led to.

Pure: times are arguments.
"""

from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

#: How long the demo plays unless it is told otherwise.
SECONDS: Final = 30.0

#: The variable that names the folder of the analysis to the nodes; without it there is none.
ANALYSIS: Final = "CALLBOARD_DEMO_ANALYSIS"
KILL_AT: Final = 15.0 / SECONDS
#: When C is killed and started again, as parts of the whole story.
RESTART_AT: Final = 18.0 / SECONDS

#: Seconds until a node that the user killed starts again.
RESTART_AFTER: Final = 3.0

KILLED: Final = "C"
#: The node that the story kills, and the one that is then out of A's reach.
FAR: Final = "D"

Blow = Literal["kill", "freeze", "thaw", "cut"]


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


class Step(NamedTuple):
    """Something that the story does to a node."""

    action: Literal["kill", "start"]
    node: str


class Timeline:
    """Says what is due. Seconds count from the moment when the line stood."""

    def __init__(self, seconds: float | None) -> None:
        """`seconds` is the length of the story; None for one without kills and end."""
        self._end = seconds
        self._steps: list[tuple[float, Step]] = []
        if seconds is not None:
            self._steps = [
                (seconds * KILL_AT, Step("kill", KILLED)),
                (seconds * RESTART_AT, Step("start", KILLED)),
            ]

    def due(self, now: float) -> list[Step]:
        """Return the steps whose time has come, once each."""
        found = [step for at, step in self._steps if at <= now]
        self._steps = [(at, step) for at, step in self._steps if at > now]
        return found

    def next_at(self) -> float | None:
        """Return when something is due next: a step or the end."""
        times = [at for at, _ in self._steps]
        if self._end is not None:
            times.append(self._end)
        return min(times, default=None)

    def is_over(self, now: float) -> bool:
        """True from the end on."""
        return self._end is not None and now >= self._end

    def restart(self, node: str, now: float) -> None:
        """Let a node start again a little later, unless a start of it is to come already."""
        if not self.will_start(node):
            self._steps.append((now + RESTART_AFTER, Step("start", node)))

    def will_start(self, node: str) -> bool:
        """True when a start of the node is to come."""
        return any(step == Step("start", node) for _, step in self._steps)


@dataclass(slots=True)
class Incident:
    """One blow, and when the system did what about it (nanoseconds of the monotonic clock).

    Milestones, each the first after the blow:
        down: the overseer on A handled the `Down` of a sensor on D, three hops away.
        down_far: a sensor on D handled the `Down` of the overseer on A, three hops away.
        unreachable: A found no path to D any more.
        lost: the overseer handled the `Down` of the aggregator.
        respawned: the overseer had spawned another aggregator.
        serving: that one handled its first reading.
        restarted: the node that was killed was started again.
        rejoined: A had a path to D again.
        reopened: the master of the store was back from its file.
        resumed: D's sensors were told where the aggregator is.
        peaks: all daily peaks that A had seen on the killed node answered again, elsewhere.
    """

    blow: Blow
    target: str
    at_ns: int
    is_scripted: bool = False
    milestones: dict[str, int] = field(default_factory=dict)

    def reach(self, milestone: str, at_ns: int) -> None:
        """Note a milestone, if it is the first of its kind after the blow."""
        if at_ns >= self.at_ns:
            self.milestones.setdefault(milestone, at_ns)

    def ms(self, milestone: str) -> float | None:
        """Return the milliseconds from the blow to a milestone; None if it was not reached."""
        at_ns = self.milestones.get(milestone)
        return None if at_ns is None else (at_ns - self.at_ns) / 1e6


#: Kind of note: its milestone, the node that has to report it, and the one that it has to be
#: about; "" is any.
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
    """All blows of a run, with what followed."""

    def __init__(self) -> None:
        self.incidents: list[Incident] = []

    def strike(
        self, blow: Blow, target: str, at_ns: int, *, is_scripted: bool = False
    ) -> Incident:
        """Begin an incident: what is noted from this moment on belongs to it."""
        incident = Incident(blow, target, at_ns, is_scripted)
        self.incidents.append(incident)
        return incident

    def note(self, reporter: str, note: dict[str, Any]) -> None:
        """Take a note of a node in."""
        milestone, by, about = _MILESTONES.get(note["kind"], ("", "", ""))
        subject = note.get("sensor") or note.get("name") or ""
        incident = self.at(note["at"])
        if milestone and incident and by in ("", reporter) and subject.startswith(about):
            incident.reach(milestone, note["at"])

    @property
    def has_healed(self) -> bool:
        """Whether all milestones of the scripted blow were reached, if there was one."""
        wanted = {milestone for milestone, _, _ in _MILESTONES.values()} | {"restarted"}
        return all(
            wanted <= incident.milestones.keys()
            for incident in self.incidents
            if incident.is_scripted
        )

    def at(self, at_ns: int) -> Incident | None:
        """Return the incident that a moment belongs to: the latest that began before it."""
        return next((each for each in reversed(self.incidents) if each.at_ns <= at_ns), None)

    def headline(self) -> Incident | None:
        """Return the incident for the last line: the scripted one, else the latest measured."""
        measured = [incident for incident in self.incidents if "down" in incident.milestones]
        scripted = [incident for incident in measured if incident.is_scripted]
        return next(reversed(scripted or measured), None)
