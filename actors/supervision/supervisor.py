"""Supervisors: actors that start children and restart them when they end.

The rules are in `callboard.actors.supervision.rules`; this module applies them to actors.
"""

import logging
from collections.abc import Sequence
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
from callboard.actors.values import Message
from callboard.support.calls import Action
from callboard.support.dataclass import dataclass
from callboard.support.text import describe

_log = logging.getLogger("callboard.actors")

#: Seconds between checks whether a lost node, on which a child may still run, is back.
POLL_SECONDS: Final = 1.0

#: Incarnations on lost nodes that are remembered; the oldest are forgotten first.
LOST_LIMIT: Final = 1_000


@dataclass(frozen=True, slots=True, eq=False)
class _Leave:
    """Asks a supervisor to end its children in order, then itself."""

    reason: ExitReason
    detail: str


class SupervisorCell(Cell):
    """The cell of a supervisor: it ends its children in order before it stops or shuts down."""

    __slots__ = ("former",)

    #: The incarnation that the child being started replaces; None at its first start.
    former: ActorRef | None

    def terminate(self, reason: ExitReason, detail: str) -> None:
        """End the supervisor, and report that its children have no successors."""
        supervisor: Supervisor | None = self.actor
        super().terminate(reason, detail)
        for slot in () if supervisor is None else supervisor._plan.slots:
            self.runtime.succession.passed(slot.ref or slot.former, None)

    def kill(self, reason: ExitReason = ExitReason.KILLED, detail: str = "") -> None:
        """End the supervisor; if the reason is `shutdown`, end its children first."""
        if reason is ExitReason.SHUTDOWN and self.actor is not None:
            self.post(_Leave(reason, detail), None)
        else:
            super().kill(reason, detail)

    def handle_other(self, message: Message, sender: Sender | None) -> None:
        """Handle a message without a `@handler`; a `Stop` becomes an orderly end."""
        if isinstance(message, Stop):
            self.actor.leave(_Leave(ExitReason.NORMAL, ""))
        else:
            super().handle_other(message, sender)


class Supervisor(Actor):
    """Starts its children in order, and restarts them when they end.

    `strategy` selects the children to restart when one ends: only that child (`one_for_one`),
    all (`one_for_all`), or that child and those started after it (`rest_for_one`). The others
    of this group are first ended, in the reverse order of start, with reason `shutdown`.

    More than `intensity[0]` restarts within `intensity[1]` seconds end the supervisor and its
    children, with one `RestartsExhausted` event, because a child that always fails needs a
    person's attention. The first restart is immediate. A child that fails again soon waits
    `backoff[0]` seconds, then twice as long each time up to `backoff[1]`, plus a random jitter
    of up to half of that. Pauses are limited so that a child that always fails still exceeds
    the intensity.
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
            Exception: an exception of a child's `__init__`; the earlier children are ended.
        """
        check_children(children)
        self._plan = Supervision(strategy, intensity, backoff, self._cell.runner.random)
        self._slots: dict[ActorRef, Slot] = {}
        self._last_words = _Leave(ExitReason.NORMAL, "")
        self._timer: Reminder | None = None
        #: Incarnations on lost nodes, where they may still run.
        self._lost: dict[ActorRef, None] = {}
        for child in children:
            slot = self._plan.add(child)
            if child.on is None:
                self._start(slot)
        if any(child.on is not None for child in children):
            # Children on other nodes are started after the local ones.
            self._call_soon(self._proceed)

    # --- for users ---

    def children(self) -> list[ActorRef]:
        """Return the refs of the running children, in the order of their specifications."""
        return [slot.ref for slot in self._plan.slots if slot.ref is not None]

    def restarts(self) -> int:
        """Return the number of restarts of all children."""
        return self._plan.total

    def restarts_of(self, ref: ActorRef) -> int:
        """Return the number of restarts of a running child."""
        slot = self._slots.get(ref)
        return 0 if slot is None else slot.restarts

    def add(self, child: Child) -> ActorRef | None:
        """Start another child after the others; return its ref.

        The call fails with the exception of the child's `__init__`. A child on another node
        starts in the background, and the result is None.
        """
        slot = self._plan.add(child)
        if child.on is not None:
            self._proceed()
            return None
        try:
            return self._start(slot)
        except BaseException as error:  # noqa: BLE001  # reported to the caller of `add`
            self._plan.remove(slot)
            self.promise().set_exception(remote_error(error))
            return None

    def remove(self, which: ActorRef | str) -> bool:
        """End a child, given by its ref or name, for good. The answer is sent after its end.

        Returns False for an unknown child.
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

    # --- events ---

    @handler
    def child_ended(self, down: ChildDown | Exit) -> None:
        """Restart a child, here or on another node, if the rules allow it."""
        slot = self._slots.pop(down.ref, None)
        if slot is not None:  # the current incarnation
            if down.reason == ExitReason.UNREACHABLE:
                slot.place = (slot.place + 1) % len(slot.child.places or (None,))
                self._seek(down.ref)
            self._handle_end(slot, down.reason, down.detail)

    def _handle_end(self, slot: Slot, reason: str, detail: str) -> None:
        """Apply the rules after the end of a child."""
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
        """Continue after a pause, or after an answer from another node."""
        order.function()

    def _overdue(self, slot: Slot, ref: ActorRef) -> None:
        """Kill a child that did not end in time, and continue without it."""
        if self._slots.get(ref) is slot and slot.phase is Phase.ENDING:
            del self._slots[ref]
            text = "%s did not end within %g s; it is killed and no longer waited for"
            _log.warning(text, slot.child.label, slot.child.shutdown)
            ref.kill()
            self._handle_end(slot, ExitReason.KILLED, "")

    def _try_place(self, slot: Slot, tried: list[str]) -> None:
        """Start a child on the next of its places; `tried` has the failures of earlier ones."""
        child = slot.child
        spawn = self._cell.runtime.spawn_elsewhere
        if spawn is None:
            msg = f"{child!r} needs other nodes, and this system has none; omit on={child.on!r}"
            raise ValueError(msg)
        place = (slot.place + len(tried)) % len(child.places)
        future = spawn(child.actor_class, child.args, child.kwargs, child.places[place])
        spawned = partial(self._spawned, slot, place, tried)
        future.add_done_callback(lambda done: self._call_soon(partial(spawned, done)))

    def _spawned(
        self, slot: Slot, place: int, tried: list[str], outcome: Future[ActorRef]
    ) -> None:
        """Handle the outcome of a start on another node; on failure, try the next place."""
        error, places = outcome.exception(), slot.child.places
        if error is None:
            slot.place = place
            ref = outcome.result()
            self._begin(slot, ref)
            self.link(ref)
        else:
            node = places[place]
            node_text = node.hex() if isinstance(node, bytes) else str(node)
            text = f"on {node_text}: {describe(error)}" if len(places) > 1 else describe(error)
            tried = [*tried, text]
            # An exception of its __init__ would occur on every other node as well.
            is_retryable = not isinstance(error, RemoteError)
            if slot.phase is Phase.STARTING and is_retryable and place != self._last(slot):
                self._try_place(slot, tried)
                return
            text = "; ".join(tried)
            if not self._plan.not_started(slot, text, self._now()):
                self._give_up(slot, text)
        self._proceed()

    def _last(self, slot: Slot) -> int:
        """Return the place of a child that is tried last."""
        return (slot.place - 1) % len(slot.child.places)

    def _seek(self, ref: ActorRef, reason: str = ExitReason.UNREACHABLE) -> None:
        """Remember a replaced incarnation on a lost node, to kill it when the node is back.

        The incarnation ends when its node notices the loss of this node, unless it traps exits.
        If it did not end, two incarnations would run when the nodes are linked again.
        """
        if reason == ExitReason.UNREACHABLE:
            if not self._lost:
                self.after(POLL_SECONDS, CallBack(self._check_lost))
            self._lost[ref] = None
            if len(self._lost) > LOST_LIMIT:
                del self._lost[next(iter(self._lost))]

    def _check_lost(self) -> None:
        """Kill incarnations that still run on nodes that are reachable again."""
        is_reachable = self._cell.runtime.remote.is_reachable
        for ref in [ref for ref in self._lost if is_reachable(ref.node_id)]:
            del self._lost[ref]
            on_down = partial(self._lost_is_down, ref)
            ref.kill()
            ref.target.monitor(("lost", self), on_down)
        if self._lost:
            self.after(POLL_SECONDS, CallBack(self._check_lost))

    def _lost_is_down(self, ref: ActorRef, down: Down) -> None:
        """Remember the incarnation again if its node was lost again.

        Can be called from any thread.
        """
        self._call_soon(partial(self._seek, ref, down.reason))

    def _call_soon(self, function: Action) -> None:
        """Call a function in a turn of this actor. Can be called from any thread."""
        self._cell.post(CallBack(function), None)

    @handler
    def leave(self, words: _Leave) -> None:
        """End the children in the reverse order of start, then this actor."""
        if not self._plan.is_closing:
            self._last_words = words
            self._plan.close()
            self._proceed()

    def _give_up(self, slot: Slot, reason: str) -> None:
        """End all children and the supervisor, because there were too many restarts."""
        plan, label, runtime = self._plan, slot.child.label, self._cell.runtime
        above = self._cell.parent
        is_top = above is None or not isinstance(above.actor, Supervisor)
        runtime.counters.exhausted += 1
        runtime.report(RestartsExhausted(self.me, label, plan.limit, plan.period, is_top))
        detail = f"{label} ended too often; last reason: {reason}"
        _log.error("supervisor %s gives up: %s", self.me, detail)
        self._last_words = _Leave(ExitReason.SHUTDOWN, detail)
        plan.close()

    # --- actions ---

    def _proceed(self) -> None:
        """Carry out the next step of the plan."""
        plan = self._plan
        while (slot := plan.next_to_end()) is not None:
            self._end(slot)
        while (slot := plan.next_to_start(self._now())) is not None:
            try:
                self._start(slot)
            except BaseException as error:  # noqa: BLE001  # a failed start counts as an end
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

    def _start(self, slot: Slot) -> ActorRef | None:
        """Start a child here, or request its start on another node."""
        child = slot.child
        if child.places:
            slot.phase = Phase.STARTING
            self._try_place(slot, [])
            return None
        cell = self._cell
        assert isinstance(cell, SupervisorCell)
        cell.former = slot.former
        ref: ActorRef = self.spawn(child.actor_class, *child.args, **child.kwargs)
        self._begin(slot, ref)
        return ref

    def _begin(self, slot: Slot, ref: ActorRef) -> None:
        """Record a running incarnation, and send it the reason of its restart."""
        child, former = slot.child, slot.former
        self._plan.started(slot, ref, self._now())
        self._slots[ref] = slot
        self._cell.runtime.succession.passed(former, ref)
        if slot.cause is not None:
            reason, detail = slot.cause
            if _handles_restarted(ref, child.actor_class):
                ref.target.post(Restarted(reason, detail, slot.restarts), None)
            event = ActorRestarted(ref, child.label, slot.restarts, reason, detail, self.me)
            self._cell.runtime.report(event)
            self._cell.runtime.counters.restarts += 1
            ended = f"{reason}: {detail}" if detail else reason
            text = "%s was restarted by %s (%s), restart %d"
            _log.warning(text, child.label, self.me, ended, slot.restarts)
        if child.name is not None:
            self.node.register(child.name, ref)

    def _end(self, slot: Slot) -> None:
        """Ask a child to end within its time."""
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


def _handles_restarted(ref: ActorRef, actor_class: Any) -> bool:
    """Return whether an actor declares a handler for `Restarted`."""
    if isinstance(ref.target, Cell):
        return Restarted in ref.target.table.declared
    return Restarted in DispatchTable(options_of(actor_class)[0]).declared
