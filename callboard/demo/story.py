"""The demo's story: its options, its timeline, the notes of its nodes, the effects of blows.

Pure: times are arguments.
"""

import math
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
#: The node whose view of the others is shown; it has the overseer.
WITNESS: Final = "A"

Blow = Literal["kill", "freeze", "thaw", "cut"]
#: The color of a line of the log: neutral, bad or good news.
Tone = Literal["plain", "bad", "good"]


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
        """Create the timeline of a run that takes some seconds.

        None for a run without an end.
        """
        self._end = math.inf if seconds is None else seconds
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

    def next_at(self) -> float:
        """Return the time of the next step or of the end; infinity without either."""
        return min([self._end, *(start for start, _ in self._steps)])

    def is_over(self, now: float) -> bool:
        """Return whether the story has ended."""
        return now >= self._end

    def restart(self, node: str, now: float) -> None:
        """Schedule a restart of a node, unless one is scheduled."""
        if all(step != Step("start", node) for _, step in self._steps):
            self._steps.append((now + RESTART_AFTER, Step("start", node)))


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


class NoteKind(NamedTuple):
    """The log line of a kind of note, and the milestone that it reaches.

    It counts as the milestone if reporter and subject are as required; empty is any.

    Attributes:
        only: the node whose notes of this kind are logged; `<` is the left end of a link.
    """

    tone: Tone
    text: str
    milestone: str = ""
    reporter: str = ""
    subject: str = ""
    only: str = ""


NOTES: Final = {
    "sensor_down": NoteKind(
        "bad", "overseer on A: sensors on {origin} down: {reason}", "down", WITNESS, FAR
    ),
    "overseer_down": NoteKind(
        "bad", "sensors on {reporter}: overseer on A down: {reason}", "down_far", FAR
    ),
    "aggregator_down": NoteKind(
        "bad", "overseer on A: aggregator on {host} down: {reason}", "lost", WITNESS
    ),
    "spawned": NoteKind(
        "good", "overseer on A: aggregator spawned on {host}", "respawned", WITNESS
    ),
    "spawn_failed": NoteKind("bad", "overseer on A: no aggregator on {host}: {reason}"),
    "master_open": NoteKind(
        "good",
        "store: master open on {reporter}, {entries} entries, {writes} writes kept",
        "reopened",
    ),
    "mqtt_over": NoteKind(
        "good",
        "MQTT: paho published {published} readings of {reporter}'s sensors, {brought} came to "
        "the hub, {recorded} are in the log",
    ),
    "mqtt_missing": NoteKind(
        "plain",
        "MQTT: no readings, paho-mqtt is not here (pip install 'callboard[mqtt]')",
    ),
    "peaks_back": NoteKind(
        "good",
        "entities: {count} daily peaks that lived on {name} answer again, {lower} are lower",
        "peaks",
        WITNESS,
    ),
    "serving": NoteKind("good", "aggregator on {reporter}: first reading handled", "serving"),
    "sensors_found": NoteKind(
        "good",
        "overseer on A: {count} sensors on {node} found by name and told the aggregator",
        "resumed",
        WITNESS,
    ),
    "failed": NoteKind("bad", "{reporter}: {actor} failed: {reason}"),
    "NodeUp": NoteKind(
        "good", "A reaches {name}, hops: {hops}", "rejoined", WITNESS, FAR, only=WITNESS
    ),
    "NodeDown": NoteKind(
        "bad", "A has no path to {name} any more", "unreachable", WITNESS, FAR, only=WITNESS
    ),
    "LinkUp": NoteKind("good", "link {reporter}─{name} is up", only="<"),
    "LinkDown": NoteKind("bad", "{reporter} lost its link to {name}: {reason}"),
    "ActorFailed": NoteKind("bad", "{reporter}: {ref} failed: {detail}"),
}


def describe(reporter: str, note: dict[str, Any]) -> tuple[str, Tone] | None:
    """Return the log line of a note; None if it is shown elsewhere or for another node."""
    kind = NOTES.get(note["kind"])
    if kind is None or not (
        reporter < note["name"] if kind.only == "<" else kind.only in ("", reporter)
    ):
        return None
    origin = str(note.get("sensor", "")).partition(".")[0]
    return kind.text.format(**{**note, "reporter": reporter, "origin": origin}), kind.tone


class Chronicle:
    """All blows of a run, with their consequences."""

    def __init__(self) -> None:
        self.incidents: list[Incident] = []

    def strike(
        self, blow: Blow, target: str, at_ns: int, *, is_scripted: bool = False
    ) -> Incident:
        """Start an incident; later notes belong to it."""
        self.incidents.append(Incident(blow, target, at_ns, is_scripted))
        return self.incidents[-1]

    def note(self, reporter: str, note: dict[str, Any]) -> None:
        """Record a note of a node."""
        kind, incident = NOTES.get(note["kind"]), self.at(note["at"])
        subject = note.get("sensor") or note.get("name") or ""
        if (
            kind
            and kind.milestone
            and incident
            and kind.reporter in ("", reporter)
            and subject.startswith(kind.subject)
        ):
            incident.reach(kind.milestone, note["at"])

    @property
    def has_healed(self) -> bool:
        """Whether all milestones of the scripted blow were reached, if there was one."""
        required = {kind.milestone for kind in NOTES.values()} - {""} | {"restarted"}
        scripted = [incident for incident in self.incidents if incident.is_scripted]
        return all(required <= incident.milestones.keys() for incident in scripted)

    def at(self, at_ns: int) -> Incident | None:
        """Return the latest incident that started before a moment."""
        started = [incident for incident in self.incidents if incident.at_ns <= at_ns]
        return started[-1] if started else None

    def headline(self) -> Incident | None:
        """Return the incident for the last line: the scripted one, or else the latest one."""
        measured = [incident for incident in self.incidents if "down" in incident.milestones]
        scripted = [incident for incident in measured if incident.is_scripted]
        return next(reversed(scripted or measured), None)
