"""A cluster that asks before each step: an actor's turn, bytes that arrive, or time?

What may happen next is a list of steps, in the order in which the simulation would do them.
There is one for each actor that has something to do (one message, or one step of a coroutine
handler), one for each connection on which bytes are under way (they keep their order), one for
the next timer of an actor, and one for each fault that the search may add. Everything else is
callboard's own work: it is done at once, in its usual order, and is no step.

A step may be taken before its time, and others may be late for its sake, as on a slow machine
or a slow way. Timers keep their order, and nothing is later than the search allows.
"""

import random
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

from callboard.kernel.activation import Cell
from callboard.kernel.actors import Reminder
from callboard.kernel.environment import (
    Runnable,
    RunnerLoop,
    frame_words,
    short_turns,
)
from callboard.kernel.errors import CallboardError
from callboard.kernel.reply import Future, Pause
from callboard.kernel.wire import Timer
from callboard.node import Node
from callboard.simulation.clock import Clock
from callboard.simulation.cluster import Cluster
from callboard.simulation.faults import Fault, Unrest
from callboard.simulation.history import History
from callboard.simulation.network import SimulatedNetwork, SimulatedSocket
from callboard.simulation.runner import SimulatedRunner, TimeStandsStill, runner_of
from callboard.simulation.schedules.states import Fingerprint, Situation
from callboard.support.dataclass import dataclass
from callboard.support.text import shown

#: The step in which time passes until a timer is due.
TIME: Final = "time"

#: The step in which nothing happens, where only a fault could.
NOTHING: Final = "nothing"

_SHORT: Final = 32

#: Steps at one moment of a test that is taken for one without an end.
STANDSTILL_STEPS: Final = 1_000


class Deadlock(CallboardError, AssertionError):
    """Actors wait for answers of one another, in handlers that keep them from answering."""


@dataclass(slots=True)
class NextStep:
    """What may happen next.

    Attributes:
        who: an actor, a way between two nodes, `time`, or a fault; no two steps share it.
        due: when the simulation would let it happen.
        run: does it; called with whether it is what the simulation would have done.
        about: the actor's cell, or the stream.
    """

    who: str
    due: float
    run: Callable[[bool], object]
    about: object = None


@dataclass(slots=True)
class Row:
    """A step that was taken.

    Attributes:
        number: its place in the run, from 1.
        when: virtual seconds.
        who: whose step it was.
        what: what that got.
        could: all that could have come, what the simulation would have done first.
        state: tells whether another run was in the same state before; None if nothing does.
    """

    number: int
    when: float
    who: str
    what: str
    could: tuple[str, ...]
    state: int | None

    @property
    def is_deviation(self) -> bool:
        """Whether the simulation would have done something else."""
        return self.who != self.could[0]


#: Chooses the next step: called with its number and all that could come, returns a place.
Plan = Callable[[int, Sequence[str]], int]


class OnTheWay:
    """Bytes that are under way to one end of a connection, first one first."""

    def __init__(self, socket: SimulatedSocket, clock: Clock) -> None:
        self.socket = socket
        self.packets: deque[tuple[float, bytes]] = deque()
        self._clock = clock

    @property
    def due(self) -> float | None:
        """When the first bytes come that a test may know of; None if there are none."""
        if self.socket.is_closed:
            return None
        return next((due for due, data in self.packets if not _is_quiet(data)), None)

    @property
    def what(self) -> str:
        """What the next bytes are."""
        return next((_told(data) for _, data in self.packets if not _is_quiet(data)), "")

    def arrive(self, _: bool) -> None:  # noqa: FBT001 - as any step
        """Let the next bytes arrive, and the quiet ones before them."""
        is_quiet = True
        while is_quiet and self.packets:
            due, data = self.packets.popleft()
            is_quiet = _is_quiet(data)
            self.socket.arrive(data)
        self.flush()

    def flush(self) -> None:
        """Let quiet bytes arrive that are due and stand first."""
        while self.packets and self.packets[0][0] <= self._clock.now:
            if not _is_quiet(self.packets[0][1]):
                return
            self.socket.arrive(self.packets.popleft()[1])


def _is_quiet(data: bytes) -> bool:
    """Return whether bytes are of no interest to a test."""
    found = [is_quiet for _, is_quiet in frame_words(data)]
    return bool(found) and all(found)


def _told(data: bytes) -> str:
    """Return what stands in bytes, as words."""
    if not data:
        return "the end of the connection"
    words: dict[str, int] = {}
    for word, is_quiet in frame_words(data):
        if not is_quiet:
            words[word] = words.get(word, 0) + 1
    told = [word if count == 1 else f"{count} x {word}" for word, count in words.items()]
    return ", ".join(told) or f"{len(data)} bytes"


class SteppedClock(Clock):
    """A clock that keeps apart what is under way on connections, while the cluster steps."""

    def __init__(self) -> None:
        """Begin at zero, not stepping."""
        super().__init__()
        self.is_stepping = False
        self.streams: dict[SimulatedSocket, OnTheWay] = {}

    def plan_at(self, when: float, event: Callable[..., object], *args: Any) -> None:
        """Let an event happen at a time; bytes arrive when their step is taken."""
        socket = getattr(event, "__self__", None)
        is_arrival = isinstance(socket, SimulatedSocket) and event == socket.arrive
        if not (is_arrival and self.is_stepping):
            super().plan_at(when, event, *args)
            return
        assert isinstance(socket, SimulatedSocket)
        stream = self.streams.setdefault(socket, OnTheWay(socket, self))
        stream.packets.append((when, args[0]))
        if _is_quiet(args[0]):
            super().plan_at(when, stream.flush)

    def end_steps(self) -> None:
        """Let all that is under way arrive in its time."""
        self.is_stepping = False
        for stream in self.streams.values():
            for due, data in stream.packets:
                self.plan_at(max(due, self.now), stream.socket.arrive, data)
        self.streams.clear()


def is_users(runnable: Runnable) -> bool:
    """Return whether a turn is a user's: of an actor not of callboard, or of asyncio."""
    if isinstance(runnable, Cell):
        if not _has_work(runnable):
            return False
        return not _is_ours(runnable)
    return isinstance(runnable, RunnerLoop)


def _is_ours(cell: Cell) -> bool:
    """Return whether an actor is one of callboard's own."""
    module = type(cell.actor).__module__
    return module.startswith("callboard.") and not module.startswith("callboard.demo.")


def _waits_of(cells: Iterable[Cell]) -> set[object]:
    """Return the reminders of actors, and what their handlers await."""
    found: set[object] = set()
    for cell in cells:
        if cell.task is not None:
            found.add(cell.task.waiting_for)
        if cell.aside is not None:
            found |= cell.aside.reminders
            found.update(task.waiting_for for task in cell.aside.tasks)
    return found


def _has_work(cell: Cell) -> bool:
    """Return whether a turn of an actor would do anything: not while its handler awaits."""
    if cell.end is not None or cell.reason is not None:
        return cell.reason is None  # of one that has ended, only the dead letters are counted
    if cell.attention and cell.is_paused:
        return False
    return cell.task is None or cell.task.ready


class SteppedRunner(SimulatedRunner):
    """Does callboard's own work at once; actors wait until the cluster chooses them."""

    is_stepping = False
    _chosen: Runnable | None = None

    def take(self, runnable: Runnable) -> None:
        """Let an actor take one step: a message, or its coroutine handler's next await."""
        self.ready.remove(runnable)
        self._chosen = runnable
        self.turn()

    def _step(self) -> bool:
        """Take the step that was chosen, if there is one, and do what is callboard's own."""
        if not self.is_stepping:
            return super()._step()
        chosen, self._chosen = self._chosen, None
        if chosen is not None:
            task = getattr(chosen, "task", None)
            with short_turns(int(task is None or not task.ready)):
                chosen.run()
        for runnable in [each for each in self.ready if not is_users(each)]:
            self.ready.remove(runnable)
            runnable.run()
        self.housekeep()
        events = self._sockets.select(0) if self._sockets.touched else None
        if events:
            self.take_events(events)
        is_busy = bool(events or self.has_calls or not all(map(is_users, self.ready)))
        return is_busy and not self._is_waiting()

    @property
    def may_go_on(self) -> bool:
        """Whether it is neither frozen nor waits for its disk."""
        return not self.is_paused and not self._is_waiting()

    def next_timer(self, ours: Container[object]) -> float | None:
        """Return when a user's actor or an ask has its next timer, in outside seconds."""
        dues = [when for when, timer in self.pending_timers() if _is_users_timer(timer, ours)]
        asks = self.unanswered_asks()
        dues += [ask.deadline for ask in asks if ask.deadline is not None]
        return self.node_clock.outside(min(dues)) if dues else None


def _is_users_timer(timer: Timer, ours: Container[object]) -> bool:
    """Return whether a timer is of a user's actor: a pause, a reminder, or asyncio's."""
    callback = timer.callback
    if callback is Pause.end:
        return timer.args[0]() not in ours
    about = getattr(callback, "__self__", None)
    return isinstance(about, Reminder | RunnerLoop | Future) and about not in ours


class _Steady(random.Random):
    """Chance of a network in which all ways are alike: what comes first is for the plan."""

    def random(self) -> float:
        """Return the middle."""
        return 0.5


class SteppedCluster(Cluster):
    """A cluster whose steps a plan chooses; what `@schedule_test` gives to a test."""

    runner_class = SteppedRunner

    def __init__(
        self,
        plan: Plan,
        *,
        seed: int = 0,
        late: float = 1.0,
        faults: Sequence[Fault] = (),
        most: int = 2_000,
        compares: bool = False,
    ) -> None:
        """Make an empty cluster.

        Args:
            plan: chooses each step.
            seed: of its chance.
            late: virtual seconds by which a step may be later than the simulation would do it.
            faults: what may go wrong, each at most once, whenever the plan chooses it.
            most: steps that are chosen; behind them it goes on as a simulation does.
            compares: whether each state is made known, so that equal ones are seen.
        """
        super().__init__(seed)
        self.clock: SteppedClock = SteppedClock()
        self.network = SimulatedNetwork(self.clock, _Steady(), self.trace)
        #: The steps that were taken.
        self.rows: list[Row] = []
        self._plan, self._late, self._most = plan, late, most
        self._faults = list(faults)
        self._unrest = Unrest(self, ())
        self._names: dict[object, str] = {}
        self._since: dict[object, float] = {}
        self._rests_at = -1
        self._is_quiet = False
        self._print = Fingerprint() if compares else None
        self._histories: list[History] = []

    def __call__(self, *args: Any, **options: Any) -> list[Node]:
        """Make linked nodes, as `Cluster` does; no step of that is chosen."""
        with self.in_order():
            return super().__call__(*args, **options)

    @contextmanager
    def in_order(self) -> Iterator[None]:
        """Choose nothing in a block: it goes on as in any simulation."""
        before, self._is_quiet = self._is_quiet, True
        self._stepping(is_so=False)
        try:
            yield
        finally:
            self._is_quiet = before

    def close(self) -> None:
        """Close all nodes that still run."""
        with self.in_order():
            super().close()

    def _stepping(self, *, is_so: bool) -> None:
        """Begin to take steps, or let everything go its usual way."""
        if not is_so:
            self.clock.end_steps()
        self.clock.is_stepping = is_so
        for runner in self._runners():
            runner.is_stepping = is_so
            if not is_so and runner.ready and not runner.is_paused:
                runner.resume()

    def _runners(self) -> list[SteppedRunner]:
        """Return the runners that run."""
        found = [runner_of(node) for node in self.nodes]
        return [each for each in found if isinstance(each, SteppedRunner) and not each.closed]

    def run_until(self, condition: Callable[[], bool], limit: float) -> bool:
        """Let steps be taken until a condition holds or for `limit` virtual seconds."""
        end = self.clock.now + limit
        if self._is_quiet:
            return super().run_until(condition, limit)
        self._stepping(is_so=True)
        if self._print is not None:
            self._print.test_goes_on(self._scene())
        while not condition():
            if len(self.rows) >= self._most:
                self._stepping(is_so=False)
                return super().run_until(condition, end - self.clock.now)
            if not self._goes_on(end):
                self.clock.now = max(self.clock.now, end)
                return condition()
        return True

    def _goes_on(self, end: float) -> bool:
        """Do callboard's own work, or take a step; False when nothing is due before the end."""
        clock = self.clock
        if clock.run_due() or self._awake:
            self._take_turns()
            return True
        steps = self._steps(end)
        first = steps[0] if steps else None
        if all(step.who == TIME for step in steps):
            self._look_for_circles()
        due, next_step = clock.next_event_at, end if first is None else min(end, first.due)
        is_timer = first is not None and first.who == TIME and first.due == due
        if due is not None and due <= next_step and not is_timer:
            if not self._may_fail(steps):
                clock.now = max(clock.now, due)
            return True
        if first is not None:
            self._choose(steps)
            return True
        return self._may_fail(steps)

    # --- steps ---

    def _steps(self, end: float) -> list[NextStep]:
        """Return what may happen next, the simulation's own choice first."""
        now = self.now
        since: dict[object, float] = {}
        steps = []
        for runner in self._runners():
            for runnable in runner.ready if runner.may_go_on else ():
                since[runnable] = self._since.get(runnable, now)
                run = partial(_take, runner, runnable)
                steps.append(NextStep(self.name(runnable), since[runnable], run, runnable))
        self._since = since
        for stream in self.clock.streams.values():
            due = stream.due
            if due is not None:
                arrival = partial(self._arrive, stream)
                steps.append(NextStep(self.name(stream), due, arrival, stream))
        ours = _waits_of(filter(_is_ours, self._cells()))
        found = [runner.next_timer(ours) for runner in self._runners()]
        dues = [due for due in found if due is not None]
        if dues:
            steps.append(NextStep(TIME, min(dues), partial(self._let_pass, min(dues))))
        steps.sort(key=lambda step: step.due)
        if not steps or steps[0].due > end:
            return []
        latest = min(end, steps[0].due + self._late)
        return [step for step in steps if step.due <= latest]

    def _choose(self, steps: list[NextStep]) -> None:
        """Let the plan choose a step, and take it."""
        steps += [
            NextStep(str(fault), self.now, partial(self._fail, fault)) for fault in self._faults
        ]
        could = tuple(step.who for step in steps)
        number = len(self.rows) + 1
        state = None
        if any(isinstance(step.about, RunnerLoop) for step in steps):
            self._print = None  # what asyncio's callbacks do is not followed
        if self._print is not None:
            state = self._print.state(self._scene(), could)
        place = self._plan(number, could) if len(could) > 1 else 0
        step = steps[place]
        row = Row(number, self.now, step.who, self._what(step), could, state)
        self.rows.append(row)
        if number > STANDSTILL_STEPS and self.rows[-STANDSTILL_STEPS].when == self.now:
            msg = f"time stands still at {self.now:g} s: {STANDSTILL_STEPS:,} steps in a row"
            raise TimeStandsStill(msg)
        about = step.about if isinstance(step.about, Cell) else f"{row.who}: {row.what}"
        if self._print is not None:
            self._print.step_begins(about)
        step.run(place == 0)
        row.when = self.now
        while self.clock.run_due() or self._awake:
            self._take_turns()
        if step.who == TIME:
            row.what = f"{self.now:g} s are over"
        if self._print is not None:
            self._print.step_taken(about, self._scene())

    def _scene(self) -> Situation:
        """Return what there is, for the comparison of states."""
        runners = self._runners()
        cells = self._cells()
        our_cells = list(filter(_is_ours, cells))
        ours = _waits_of(our_cells)
        timers = [
            (when, timer)
            for runner in runners
            for when, timer in runner.pending_timers()
            if _is_users_timer(timer, ours)
        ]
        packets = [
            (self.name(stream), *stream.packets)
            for stream in self.clock.streams.values()
            if stream.packets
        ]
        seen = tuple(
            (operation.began, operation.ended)
            for history in self._histories
            for operation in history.operations
        )
        handled = sum(cell.handled for cell in our_cells)
        return Situation(self.now, cells, timers, packets, seen, handled)

    def _cells(self) -> list[Cell]:
        """Return the actors of nodes that run."""
        running = [node for node in self.nodes if self.is_running(node)]
        return [cell for node in running for cell in node.context.contexts.values()]

    def history(self) -> History:
        """Return an empty history whose times are those of the cluster."""
        self._histories.append(super().history())
        return self._histories[-1]

    def _may_fail(self, steps: Sequence[NextStep]) -> bool:
        """Let a fault happen while all is at rest, if the plan wants it; once for each rest."""
        if steps or not self._faults or self._rests_at == len(self.rows):
            return False
        self._choose([NextStep(NOTHING, self.now, lambda _: None)])
        self._rests_at = len(self.rows)
        return True

    def _arrive(self, stream: OnTheWay, is_usual: bool) -> None:  # noqa: FBT001 - as any step
        """Let bytes arrive, in their time if nothing else was to come first."""
        due = stream.due
        if is_usual and due is not None and due > self.now:
            self.clock.now = due
        stream.arrive(is_usual)

    def _let_pass(self, until: float, _: bool) -> None:  # noqa: FBT001 - as any step
        """Let time pass; actors and connections are late for it."""
        clock = self.clock
        while (due := clock.next_event_at) is not None and due <= until:
            clock.now = max(clock.now, due)
            while clock.run_due() or self._awake:
                self._take_turns()
        clock.now = max(clock.now, until)

    def _fail(self, fault: Fault, _: bool) -> None:  # noqa: FBT001 - as any step
        """Let a fault happen."""
        self._faults.remove(fault)
        self._unrest.begin(fault)

    # --- words ---

    def name(self, about: object) -> str:
        """Return how an actor, a stream or an event loop is called in this run."""
        if about not in self._names:
            name, count = self._first_name(about), 1
            taken = set(self._names.values())
            while (f"{name} {count}" if count > 1 else name) in taken:
                count += 1
            self._names[about] = f"{name} {count}" if count > 1 else name
        return self._names[about]

    def _first_name(self, about: object) -> str:
        """Return what something is called if it is the first of its kind."""
        if isinstance(about, Cell):
            return f"{type(about.actor).__name__} on {about.runner.name}"
        if isinstance(about, OnTheWay):
            names = {host: node.name for node, host in self._hosts.items()}
            one, other = about.socket.remote[0], about.socket.host
            return f"{names.get(one, one)} to {names.get(other, other)}"
        runner = next((each for each in self._runners() if each.loop is about), None)
        return f"asyncio on {runner.name if runner is not None else '?'}"

    def _what(self, step: NextStep) -> str:
        """Return what a step brings."""
        about = step.about
        if isinstance(about, OnTheWay):
            return about.what
        if isinstance(about, RunnerLoop):
            return "goes on"
        if not isinstance(about, Cell):
            return "happens" if step.who not in {TIME, NOTHING} else ""
        if about.end is not None:
            return f"ends ({about.end[0]})"
        if about.task is not None and about.task.ready:
            return "goes on"
        if not about.depth:
            return "goes on"
        message, sender = about.waiting[0]
        kind = type(message).__name__
        if kind == "Resume":
            return "goes on"
        text = shown(
            getattr(message, "message", message) if kind == "Envelope" else message, _SHORT
        )
        text = kind if " object at 0x" in text else text
        is_others = isinstance(sender, Cell) and sender is not about
        return f"{text} from {self.name(sender)}" if is_others else text

    # --- circles ---

    def _look_for_circles(self) -> None:
        """Raise where actors wait for one another, now that nothing more happens at once.

        Raises:
            Deadlock: they do.
        """
        cells = self._cells()
        known = {cell.ref: cell for cell in cells}
        waits = {cell: other for cell in cells if (other := _asked(cell, known)) is not None}
        for begin in waits:
            way, cell = [begin], waits[begin]
            while cell not in way and cell in waits:
                way.append(cell)
                cell = waits[cell]
            if cell is begin:
                names = " -> ".join(map(self.name, [*way, begin]))
                message = f"actors wait for one another's answers: {names}"
                raise Deadlock(message)


def _take(runner: SteppedRunner, runnable: Runnable, _: bool) -> None:  # noqa: FBT001
    """Let an actor take a step."""
    runner.take(runnable)


def _asked(cell: Cell, known: dict[Any, Cell]) -> Cell | None:
    """Return for whose answer a cell handles no message, if that one waits as well."""
    task = cell.task
    if task is None or task.ready or not isinstance(task.waiting_for, Future):
        return None
    other = known.get(task.waiting_for.asked)
    if other is None or other.task is None or not other.depth:
        return None
    is_local = other.runtime is cell.runtime
    if is_local and all(sender is not task.waiting_for for _, sender in other.waiting):
        return None
    return other
