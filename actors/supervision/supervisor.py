"""Supervisors: actors that start children and start them again when they end.

The rules are in `callboard.actors.supervision`; here they are carried out on actors.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from callboard.actors.actor import Actor
from callboard.actors.cell import Cell, Reminder
from callboard.actors.dispatch import DispatchTable, handler
from callboard.actors.errors import RemoteError, remote_error
from callboard.actors.events import ActorRestarted, RestartsExhausted
from callboard.actors.exit_reason import ExitReason
from callboard.actors.future import Future
from callboard.actors.mailbox import options_of
from callboard.actors.reference import ActorRef, Down, Sender
from callboard.actors.signals import ChildDown, Exit, Restarted, Stop
from callboard.actors.supervision.child import Child, check_children
from callboard.actors.supervision.rules import BACKOFF, Phase, Slot, Supervision
from callboard.actors.system_actor import CallBack
from callboard.support.dataclass import dataclass
from callboard.support.text import describe

log = logging.getLogger("callboard.actors")

#: Seconds between looks whether a lost node is back on which a child may still run.
LOOK_INTERVAL: Final = 1.0

#: Such children that are remembered.
LOST_LIMIT: Final = 1_000


@dataclass(frozen=True, slots=True, eq=False)
class _Leave:
    """To a supervisor itself: end your children in order, then yourself."""

    reason: ExitReason
    detail: str


class SupervisorCell(Cell):
    """The cell of a supervisor: a stop or shutdown lets it end its children in order first."""

    __slots__ = ("former",)

    #: Whose place the child takes that is being started; None for a child's first start.
    former: ActorRef[Any] | None

    def terminate(self, reason: ExitReason, detail: str) -> None:
        """End; nothing takes the place of the children any more."""
        supervisor: Supervisor | None = self.actor
        super().terminate(reason, detail)
        for slot in () if supervisor is None else supervisor._plan.slots:
            self.runtime.succession.passed(slot.ref or slot.former, None)

    def kill(self, reason: ExitReason = ExitReason.KILLED, detail: str = "") -> None:
        """End before the next message; with reason `shutdown`, once the children have ended."""
        if reason is ExitReason.SHUTDOWN and self.actor is not None:
            self.post(_Leave(reason, detail), None)
        else:
            super().kill(reason, detail)

    def handle_other(self, message: Any, sender: Sender | None) -> None:
        """Handle what no `@handler` takes; a stop becomes an orderly end."""
        if isinstance(message, Stop):
            self.actor.leave(_Leave(ExitReason.NORMAL, ""))
        else:
            super().handle_other(message, sender)


class Supervisor(Actor):
    """Starts its children in order, and again when they end.

    `strategy` says which children are started again when one ends: only that child
    (`one_for_one`), all (`one_for_all`), or it and those started after it (`rest_for_one`). The
    others of the group are ended first, the last one first, with reason `shutdown`.

    More than `intensity[0]` restarts within `intensity[1]` seconds end the supervisor and its
    children, with one `RestartsExhausted` event: a child that cannot live needs attention.
    The first restart comes at once; a child that fails again soon waits `backoff[0]` seconds,
    then twice as long each time up to `backoff[1]`, each time up to half as much more by
    chance. No pause is so long that a child which always fails escapes the intensity.
    """

    trap_exit = True
    cell_class = SupervisorCell

    def __init__(
        self,
        children: Sequence[Child] = (),
        strategy: str = "one_for_one",
        intensity: tuple[int, float] = (3, 5.0),
        backoff: tuple[float, float] = BACKOFF,
    ) -> None:
        """Start the children.

        Raises:
            ValueError: the strategy is not known, or a number is negative.
            Exception: whatever the `__init__` of a child raised; those before it are ended.
        """
        check_children(children)
        self._plan = Supervision(strategy, intensity, backoff, self._cell.runner.random)
        self._slots: dict[ActorRef[Any], Slot] = {}
        self._last_words = _Leave(ExitReason.NORMAL, "")
        self._timer: Reminder | None = None
        #: Incarnations on nodes that were lost, which may still run there.
        self._lost: dict[ActorRef[Any], None] = {}
        for child in children:
            slot = self._plan.add(child)
            if child.on is None:
                self._start(slot)
        if any(child.on is not None for child in children):
            self._call_soon(self._proceed)  # children elsewhere start behind

    # --- for users ---

    def children(self) -> list[ActorRef[Any]]:
        """Return the refs of the children that run, in the order in which they were given."""
        return [slot.ref for slot in self._plan.slots if slot.ref is not None]

    def restarts(self) -> int:
        """Return how often a child ended and was to be started again."""
        return self._plan.total

    def restarts_of(self, ref: ActorRef[Any]) -> int:
        """Return how often a child that runs was started again."""
        slot = self._slots.get(ref)
        return 0 if slot is None else slot.restarts

    def add(self, child: Child) -> ActorRef[Any] | None:
        """Start one more child, behind the others; returns its ref.

        The call fails with what the child's `__init__` raised. A child on another node is
        started in the background, and None returned.
        """
        slot = self._plan.add(child)
        if child.on is not None:
            self._proceed()
            return None
        try:
            return self._start(slot)
        except BaseException as error:  # noqa: BLE001  # the caller's, not the supervisor's
            self._plan.remove(slot)
            self.promise().set_exception(remote_error(error))
            return None

    def remove(self, which: ActorRef[Any] | str) -> bool:
        """End a child, by its ref or name, for good; answers once it has ended.

        Returns False when there is no such child.
        """
        slot = next((s for s in self._plan.slots if which in (s.ref, s.child.name)), None)
        if slot is None or slot.is_leaving:
            return False
        if self._plan.remove(slot):
            self._cell.runtime.succession.passed(slot.former, None)
        else:
            promise = self.promise()
            slot.on_gone = lambda: promise.set_result(True)
        self._proceed()
        return True

    # --- what happens ---

    @handler
    def child_ended(self, down: ChildDown | Exit) -> None:
        """Start a child again, here or on another node, if it is to be and may be."""
        slot = self._slots.pop(down.ref, None)
        if slot is not None:  # the incarnation that runs
            if down.reason == ExitReason.UNREACHABLE:
                slot.place = (slot.place + 1) % len(slot.child.places or (None,))
                self._seek(down.ref)
            self._gone(slot, down.reason, down.detail)

    def _gone(self, slot: Slot, reason: str, detail: str) -> None:
        """Go on after the end of a child."""
        if slot.timer is not None:
            slot.timer.cancel()
            slot.timer = None
        if not self._plan.ended(slot, reason, detail, self._now()):
            self._give_up(slot, reason)
        if slot.phase is Phase.DONE:
            self._cell.runtime.succession.passed(slot.former, None)
        if slot.on_gone is not None:
            slot.on_gone()
        self._proceed()

    @handler
    def call_back(self, order: CallBack) -> None:
        """Go on with what waited for its time, or for another node."""
        order.function()

    def _overdue(self, slot: Slot, ref: ActorRef[Any]) -> None:
        """Go on without a child that does not end."""
        if self._slots.get(ref) is slot and slot.phase is Phase.ENDING:
            del self._slots[ref]
            text = "%s did not end within %g s; it is killed and no longer waited for"
            log.warning(text, slot.child.label, slot.child.shutdown)
            ref.kill()
            self._gone(slot, ExitReason.KILLED, "")

    def _try_place(self, slot: Slot, tried: list[str]) -> None:
        """Begin a start on the next of a child's places, behind those that did not take it."""
        child = slot.child
        spawn = self._cell.runtime.spawn_elsewhere
        if spawn is None:
            msg = f"{child!r} is to run on {child.on!r}, and there are no other nodes"
            raise ValueError(msg)
        at = (slot.place + len(tried)) % len(child.places)
        future = spawn(child.actor_class, child.args, child.kwargs, child.places[at])
        spawned = partial(self._spawned, slot, at, tried)
        future.add_done_callback(lambda done: self._call_soon(partial(spawned, done)))

    def _spawned(
        self, slot: Slot, at: int, tried: list[str], outcome: Future[ActorRef[Any]]
    ) -> None:
        """Take note of how a start on another node ended; it may be tried on the next one."""
        error, places = outcome.exception(), slot.child.places
        if error is None:
            slot.place = at
            ref = outcome.result()
            self._begin(slot, ref)
            self.link(ref)
        else:
            where = places[at].hex() if isinstance(places[at], bytes) else str(places[at])
            text = f"on {where}: {describe(error)}" if len(places) > 1 else describe(error)
            tried = [*tried, text]
            # What its __init__ raised it would raise on each of them.
            is_other_node_better = not isinstance(error, RemoteError)
            if slot.phase is Phase.STARTING and is_other_node_better and at != self._last(slot):
                self._try_place(slot, tried)
                return
            text = "; ".join(tried)
            if not self._plan.not_started(slot, text, self._now()):
                self._give_up(slot, text)
        self._proceed()

    def _last(self, slot: Slot) -> int:
        """Return the place of a child that is tried last."""
        return (slot.place - 1) % len(slot.child.places)

    def _seek(self, ref: ActorRef[Any], reason: str = ExitReason.UNREACHABLE) -> None:
        """Remember an incarnation whose node is lost; another one takes its place.

        It ends by itself when its node misses this one, unless it traps exits. So it is killed
        as soon as a path leads there again: of those that see each other one runs.
        """
        if reason == ExitReason.UNREACHABLE:
            if not self._lost:
                self.after(LOOK_INTERVAL, CallBack(self._look_for_lost))
            self._lost[ref] = None
            if len(self._lost) > LOST_LIMIT:
                del self._lost[next(iter(self._lost))]

    def _look_for_lost(self) -> None:
        """Kill what still runs on nodes that are back."""
        is_reachable = self._cell.runtime.remote.is_reachable
        for ref in [ref for ref in self._lost if is_reachable(ref.node_id)]:
            del self._lost[ref]
            told = partial(self._told_of_lost, ref)
            ref.kill()
            ref.target.monitor(("lost", self), told)
        if self._lost:
            self.after(LOOK_INTERVAL, CallBack(self._look_for_lost))

    def _told_of_lost(self, ref: ActorRef[Any], down: Down) -> None:
        """Look again if its node was lost again; on any thread."""
        self._call_soon(partial(self._seek, ref, down.reason))

    def _call_soon(self, function: Callable[[], object]) -> None:
        """Call a function in a turn of this actor; from any thread."""
        self._cell.post(CallBack(function), None)

    @handler
    def leave(self, words: _Leave) -> None:
        """End the children, the last one first, then this actor."""
        if not self._plan.is_closing:
            self._last_words = words
            self._plan.close()
            self._proceed()

    def _give_up(self, slot: Slot, reason: str) -> None:
        """End all children and the supervisor: one restart too many."""
        plan, label, runtime = self._plan, slot.child.label, self._cell.runtime
        above = self._cell.parent
        is_top = above is None or not isinstance(above.actor, Supervisor)
        runtime.counters.exhausted += 1
        runtime.report(RestartsExhausted(self.me, label, plan.limit, plan.period, is_top))
        detail = f"{label} ended too often, last: {reason}"
        log.error("supervisor %s gives up: %s", self.me, detail)
        self._last_words = _Leave(ExitReason.SHUTDOWN, detail)
        plan.close()

    # --- what is done ---

    def _proceed(self) -> None:
        """Do what the plan says is next."""
        plan = self._plan
        while (slot := plan.next_to_end()) is not None:
            self._end(slot)
        while (slot := plan.next_to_start(self._now())) is not None:
            try:
                self._start(slot)
            except BaseException as error:  # noqa: BLE001  # a failed start is one more end
                if not plan.not_started(slot, describe(error), self._now()):
                    self._give_up(slot, describe(error))
        if plan.is_over:
            self.stop_self(self._last_words.reason, self._last_words.detail)
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = plan.next_due
        if due is not None and not plan.is_closing:
            self._timer = self.after(max(0.0, due - self._now()), CallBack(self._proceed))

    def _start(self, slot: Slot) -> ActorRef[Any] | None:
        """Start a child here, or begin its start on another node."""
        child = slot.child
        if child.places:
            slot.phase = Phase.STARTING
            self._try_place(slot, [])
            return None
        cell = self._cell
        assert isinstance(cell, SupervisorCell)
        cell.former = slot.former
        ref: ActorRef[Any] = self.spawn(child.actor_class, *child.args, **child.kwargs)
        self._begin(slot, ref)
        return ref

    def _begin(self, slot: Slot, ref: ActorRef[Any]) -> None:
        """Take note of an incarnation that runs, and tell it why it was started."""
        child, former = slot.child, slot.former
        self._plan.started(slot, ref, self._now())
        self._slots[ref] = slot
        self._cell.runtime.succession.passed(former, ref)
        if slot.cause is not None:
            reason, detail = slot.cause
            if _wants_to_know(ref, child.actor_class):
                ref.target.post(Restarted(reason, detail, slot.restarts), None)
            event = ActorRestarted(ref, child.label, slot.restarts, reason, detail, self.me)
            self._cell.runtime.report(event)
            self._cell.runtime.counters.restarts += 1
            ended = f"{reason}: {detail}" if detail else reason
            text = "%s was started again by %s (%s), restart %d"
            log.warning(text, child.label, self.me, ended, slot.restarts)
        if child.name is not None:
            self.node.register(child.name, ref)

    def _end(self, slot: Slot) -> None:
        """Tell a child to end, within its time."""
        ref = slot.ref
        limit = slot.child.shutdown
        if limit is not None:
            slot.timer = self.after(limit, CallBack(partial(self._overdue, slot, ref)))
        if isinstance(ref.target, Cell):
            ref.target.kill(ExitReason.SHUTDOWN)
        else:
            ref.kill()

    def _now(self) -> float:
        """Return the node's time."""
        return self._cell.runner.now()


def _wants_to_know(ref: ActorRef[Any], actor_class: Any) -> bool:
    """Return whether an actor has a handler for `Restarted` itself."""
    if isinstance(ref.target, Cell):
        return Restarted in ref.target.table.declared
    return Restarted in DispatchTable(options_of(actor_class)[0]).declared
