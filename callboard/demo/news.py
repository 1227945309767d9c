"""The lines of the log: what each note of a node reads like. Pure."""

from collections.abc import Callable
from typing import Any, Final, Literal

#: What makes a line of the log good or bad news.
Tone = Literal["plain", "bad", "good"]

WITNESS: Final = "A"
"""The node whose view of the others is shown: the overseer lives there."""

_LINES: Final[dict[str, tuple[Tone, str]]] = {
    "sensor_down": ("bad", "overseer on A: sensors on {origin} down: {reason}"),
    "overseer_down": ("bad", "sensors on {reporter}: overseer on A down: {reason}"),
    "aggregator_down": ("bad", "overseer on A: aggregator on {host} down: {reason}"),
    "spawned": ("good", "overseer on A: aggregator spawned on {host}"),
    "spawn_failed": ("bad", "overseer on A: no aggregator on {host}: {reason}"),
    "master_open": (
        "good",
        "store: master open on {reporter}, {entries} entries, {writes} writes kept",
    ),
    "mqtt_over": (
        "good",
        "MQTT: paho published {published} readings of {reporter}'s sensors, {brought} came to "
        "the hub, {recorded} are in the log",
    ),
    "mqtt_missing": (
        "plain",
        "MQTT: no readings, paho-mqtt is not here (pip install 'callboard[mqtt]')",
    ),
    "serving": ("good", "aggregator on {reporter}: first reading handled"),
    "sensors_found": (
        "good",
        "overseer on A: {count} sensors on {node} found by name and told the aggregator",
    ),
    "failed": ("bad", "{reporter}: {actor} failed: {reason}"),
    "node_up": ("good", "A reaches {name}, hops: {hops}"),
    "node_down": ("bad", "A has no path to {name} any more"),
    "link_up": ("good", "link {reporter}─{peer} is up"),
    "link_down": ("bad", "{reporter} lost its link to {peer}: {reason}"),
}

# What several nodes see is told by one: nodes by A, a link that is up by its left end.
_TOLD_BY: Final[dict[str, Callable[[str, dict[str, Any]], bool]]] = {
    "node_up": lambda reporter, _: reporter == WITNESS,
    "node_down": lambda reporter, _: reporter == WITNESS,
    "link_up": lambda reporter, note: reporter < note["peer"],
}


def describe(reporter: str, note: dict[str, Any]) -> tuple[str, Tone] | None:
    """Return the line for a note; None for what is shown elsewhere or told by another node."""
    kind = note["kind"]
    if kind not in _LINES or not _TOLD_BY.get(kind, _always)(reporter, note):
        return None
    tone, line = _LINES[kind]
    origin = str(note.get("sensor", "")).partition(".")[0]
    return line.format(**{**note, "reporter": reporter, "origin": origin}), tone


def _always(_reporter: str, _note: dict[str, Any]) -> bool:
    return True
