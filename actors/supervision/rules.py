"""The rules of supervision, without actors: which child ends or starts, and when to give up.

Each child has a slot. Slots are in the order of start, and change only here:

    RUNNING   the child runs
    DOOMED    it runs, but has to end: its group restarts, it is removed, or all end
    ENDING    it was asked to end
    DOWN      it has to start, not before `due`
    STARTING  its start on another node is in progress
    DONE      it ended for good

The supervisor reports events (`ended`, `not_started`), and then asks `next_to_end` and
`next_to_start` for its next steps. The children of a group are ended one at a time, in the
reverse order of start. When all have ended, they are started again in order. If another child
fails in between, its group is restarted as well.
"""

import random
from collections import deque
from enum import Enum, auto
from numbers import Real
from typing import Any, Final

from callboard.actors.errors import WrongValue
from callboard.actors.exit_reason import ExitReason
from callboard.actors.supervision.child import Child
from callboard.arguments import require, seconds
from callboard.backoff import Backoff
from callboard.support.calls import Action
from callboard.support.dataclass import dataclass

STRATEGIES: Final = ("one_for_one", "one_for_all", "rest_for_one")

#: Seconds of the first and the longest pause before a restart that follows another one.
BACKOFF: Final = (0.05, 5.0)


class Phase(Enum):
    """The state of a child."""

    RUNNING = auto()
    DOOMED = auto()
    ENDING = auto()
    DOWN = auto()
    STARTING = auto()
    DONE = auto()


@dataclass(eq=False)
class Slot:
    """One child of a supervisor.

    Attributes:
        ref: the current incarnation, or None.
        former: the previous incarnation, after it has ended.
        due: the earliest time of the next start while the child is down.
        restarts: number of restarts.
        cause: reason and detail of the end of the previous incarnation; None at the first
            start.
        is_leaving: whether the slot is removed when the child has ended.
        place: index of the child's place that it runs on, or that is tried first.
    """

    child: Child
    phase: Phase = Phase.DOWN
    ref: Any = None
    former: Any = None
    due: float = 0.0
    restarts: int = 0
    cause: tuple[str, str] | None = None
    is_leaving: bool = False
    place: int = 0
    started_at: float = 0.0
    #: The pauses between restarts in quick succession; None before the first.
    backoff: Backoff | None = None
    #: For the supervisor: the timer that limits an end, and a callback for the end.
    timer: Any = None
    on_gone: Action | None = None


class Supervision:
    """The slots of one supervisor, and the rules over them."""

    def __init__(
        self,
        strategy: str,
        intensity: tuple[int, float],
        backoff: tuple[float, float],
        rng: random.Random,
    ) -> None:
        """Start without children.

        Raises:
            ValueError: the strategy is not known, or a number is negative.
        """
        if strategy not in STRATEGIES:
            msg = f"strategy={strategy!r} is not known; use one of {', '.join(STRATEGIES)}"
            raise WrongValue(msg)
        _check_pair(intensity, "intensity", "(3, 5.0): 3 restarts in 5 seconds")
        _check_pair(backoff, "backoff", "(0.05, 5.0): the shortest and the longest pause")
        self.limit, self.period = intensity
        if self.limit < 0 or self.period < 0 or min(backoff) < 0:
            msg = f"intensity={intensity!r}, backoff={backoff!r}: numbers must not be negative"
            raise WrongValue(msg)
        self.limit = int(seconds(self.limit, "intensity"))
        self.period = seconds(self.period, "intensity")
        backoff = seconds(backoff[0], "backoff"), seconds(backoff[1], "backoff")
        self.strategy = strategy
        self.slots: list[Slot] = []
        self.total = 0
        self.is_closing = False
        # Limited, so that a child which always fails at once still exceeds the intensity: the
        # pauses of `limit + 1` restarts, without jitter, fit into half of the period.
        longest = min(backoff[1], self.period / (2 * (self.limit + 1)))
        self._pauses = (backoff[0], longest)
        self._random = rng
        self._times: deque[float] = deque()

    # --- events ---

    def started(self, slot: Slot, ref: Any, now: float) -> None:
        """Record a successful start; the child may be doomed already."""
        slot.ref, slot.former = ref, None
        slot.started_at = now
        if slot.cause is not None:
            slot.restarts += 1
        if slot.phase in (Phase.DOWN, Phase.STARTING):
            slot.phase = Phase.RUNNING

    def ended(self, slot: Slot, reason: str, detail: str, now: float) -> bool:
        """Record the end of a child; return False if there were too many restarts."""
        slot.ref, slot.former = None, slot.ref or slot.former
        was_doomed = slot.phase in (Phase.DOOMED, Phase.ENDING)
        wants_restart = (
            slot.child.restart != "temporary"
            if was_doomed
            else slot.child.wants_restart(reason)
        )
        if slot.is_leaving or self.is_closing or not wants_restart:
            self._finish(slot)
        elif was_doomed:
            slot.phase = Phase.DOWN
        else:
            return self._restart(slot, reason, detail, now)
        return True

    def not_started(self, slot: Slot, text: str, now: float) -> bool:
        """Record a failed start, which counts as an end.

        Return False if there were too many.
        """
        if slot.phase in (Phase.DOOMED, Phase.ENDING):
            return self.ended(slot, ExitReason.ERROR, text, now)
        slot.started_at = now
        return self._restart(slot, ExitReason.ERROR, text, now)

    # --- changes of the children ---

    def add(self, child: Child) -> Slot:
        """Append the slot of a new child."""
        slot = Slot(child)
        self.slots.append(slot)
        return slot

    def remove(self, slot: Slot) -> bool:
        """Remove a child; return False if it still has to end."""
        slot.is_leaving = True
        if slot.phase in (Phase.DOWN, Phase.DONE):
            self._finish(slot)
            return True
        if slot.phase is not Phase.ENDING:
            slot.phase = Phase.DOOMED
        return False

    def close(self) -> None:
        """Mark all children to be ended, and start none after this."""
        self.is_closing = True
        for slot in self.slots:
            if slot.phase in (Phase.RUNNING, Phase.STARTING):
                slot.phase = Phase.DOOMED
            elif slot.phase is Phase.DOWN:
                slot.phase = Phase.DONE

    # --- the next action ---

    def next_to_end(self) -> Slot | None:
        """Return the next child to end, now ENDING; None while another one is ending."""
        if any(slot.phase is Phase.ENDING for slot in self.slots):
            return None
        for slot in reversed(self.slots):
            if slot.phase is Phase.DOOMED:
                if slot.ref is None:
                    return None  # a start on another node has to finish first
                slot.phase = Phase.ENDING
                return slot
        return None

    def next_to_start(self, now: float) -> Slot | None:
        """Return a child to start now, or None."""
        in_order = self.strategy != "one_for_one"
        if self.is_closing or (in_order and self._is_ending):
            return None
        for slot in self.slots:
            if slot.phase is Phase.DOWN and slot.due <= now:
                return slot
            if in_order and slot.phase in (Phase.DOWN, Phase.STARTING):
                return None
        return None

    @property
    def next_due(self) -> float | None:
        """The time of the next start; None if no child waits for one."""
        times = [slot.due for slot in self.slots if slot.phase is Phase.DOWN]
        return min(times, default=None)

    @property
    def is_over(self) -> bool:
        """Whether the supervisor is closing and all children have ended."""
        return self.is_closing and not self._is_ending

    @property
    def _is_ending(self) -> bool:
        """Whether a child still has to end."""
        return any(slot.phase in (Phase.ENDING, Phase.DOOMED) for slot in self.slots)

    # --- the rules ---

    def _finish(self, slot: Slot) -> None:
        """Mark a child as ended for good."""
        slot.phase = Phase.DONE
        if slot.is_leaving or slot.child.restart == "temporary":
            self.slots.remove(slot)

    def _restart(self, slot: Slot, reason: str, detail: str, now: float) -> bool:
        """Schedule the restart of a child and its group; return False if it is one too many."""
        if not self._may_restart(now):
            slot.phase = Phase.DONE
            return False
        due = now + self._pause(slot, now)
        slot.cause = (str(reason), detail)
        group_detail = f"{slot.child.label} ended: {detail or reason}"
        for member in self._group(slot):
            member.due = max(member.due, due)
            if member.phase in (Phase.RUNNING, Phase.STARTING) and member is not slot:
                member.phase = Phase.DOOMED
                member.cause = (ExitReason.SHUTDOWN.value, group_detail)
            elif member.phase is Phase.DONE:
                member.phase = Phase.DOWN
                member.cause = (ExitReason.SHUTDOWN.value, group_detail)
        slot.phase = Phase.DOWN
        return True

    def _group(self, slot: Slot) -> list[Slot]:
        """Return the children that restart because this one ended."""
        if self.strategy == "one_for_one":
            return [slot]
        if self.strategy == "one_for_all":
            return self.slots
        return self.slots[self.slots.index(slot) :]

    def _may_restart(self, now: float) -> bool:
        """Count a restart; return False if it exceeds the intensity."""
        while self._times and self._times[0] < now - self.period:
            self._times.popleft()
        if len(self._times) >= self.limit:
            return False
        self._times.append(now)
        self.total += 1
        return True

    def _pause(self, slot: Slot, now: float) -> float:
        """Return the seconds before a restart: 0 at first, longer if the child fails again."""
        if slot.backoff is None or now - slot.started_at > self.period:
            slot.backoff = Backoff(*self._pauses)
            return 0.0
        return slot.backoff.next_pause(self._random)


def _check_pair(value: object, name: str, example: str) -> None:
    """Check that an argument is a pair of numbers.

    Raises:
        WrongArgument: the argument is not a pair of numbers.
    """
    pair = value if isinstance(value, tuple | list) else ()
    are_numbers = all(isinstance(n, Real) and not isinstance(n, bool) for n in pair)
    is_pair = len(pair) == 2 and are_numbers
    require(is_pair, f"{name} must be a pair of numbers, such as {example}", value)
