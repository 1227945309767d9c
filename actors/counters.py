"""What a node counts of its actors."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class Counters:
    """What happened on this node since it started, in messages."""

    spawned: int = 0
    dead_letters: int = 0
    unexpected: int = 0
    failures: int = 0
    late_answers: int = 0
    overflows: int = 0
    expired: int = 0
    slow_handlers: int = 0
    handled_by_ended: int = 0
    refused_spawns: int = 0
    ends: dict[str, int] = field(default_factory=dict)
