"""A cluster in which a plan chooses each step: an actor's turn, an arrival, or time.

The possible next steps form a list, in the order in which an ordinary simulation would execute
them. There is one for each actor with work (one message, or one step of a coroutine handler),
one for each connection with bytes in flight (which keep their order), one for the next timer of
an actor, and one for each fault that the search may inject. Callboard's own work is not a step;
it is done at once, in the usual order.

A step may be executed early, which delays others, as on a slow machine or connection. Timers
keep their order, and no step is later than the search allows.
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
from callboard.simulation.faults import Fault, FaultInjector
from callboard.simulation.history import History
from callboard.simulation.network import SimulatedNetwork, SimulatedSocket
from callboard.simulation.runner import SimulatedRunner, TimeStandsStill, runner_of
from callboard.simulation.schedules.states import Fingerprint, StateFingerprint
from callboard.support.dataclass import dataclass
from callboard.support.text import safe_repr

#: Name of the step that advances time to the next timer.
TIME: Final = "time"

#: Name of the empty step, offered when only a fault is possible.
NOTHING: Final = "nothing"

_SHORT: Final = 32

#: Steps without an advance of time after which a test counts as endless.
STANDSTILL_STEPS: Final = 1_000


class Deadlock(CallboardError, AssertionError):
    """Actors wait for each other's answers, in handlers that prevent them from answering."""


@dataclass(slots=True)
class NextStep:
    """A possible next step.

    Attributes:
        who: unique name: an actor, a connection between two nodes, `time`, or a fault.
        due: time at which an ordinary simulation would execute it.
        run: executes it; the argument is whether it is the usual choice.
        about: the actor's cell, or the stream.
    """

    who: str
    due: float
    run: Callable[[bool], object]
    about: object = None


@dataclass(slots=True)
class Row:
    """An executed step.

    Attributes:
        number: number of the step in the run, from 1.
        when: virtual seconds.
        who: name of the step.
        what: description of its input.
        could: names of all possible steps, the usual choice first.
        state: fingerprint of the state before the step; None if states are not compared.
    """

    number: int
    when: float
    who: str
    what: str
    could: tuple[str, ...]
    state: int | None

    @property
    def is_deviation(self) -> bool:
        """Whether the step was not the usual choice."""
        return self.who != self.could[0]


#: Chooses the next step: called with its number and the possible names; returns an index.
Plan = Callable[[int, Sequence[str]], int]


class OnTheWay:
    """Bytes in flight to one end of a connection, in their order."""

    def __init__(self, socket: SimulatedSocket, clock: Clock) -> None:
        self.socket = socket
        self.packets: deque[tuple[float, bytes]] = deque()
        self._clock = clock

    @property
    def due(self) -> float | None:
        """Arrival time of the first bytes that a test observes; None without any."""
        if self.socket.is_closed:
            return None
        return next((due for due, data in self.packets if not _is_quiet(data)), None)

    @property
    def what(self) -> str:
        """Description of the next bytes."""
        return next(
            (_describe_frames(data) for _, data in self.packets if not _is_quiet(data)), ""
        )

    def arrive(self, _: bool) -> None:  # noqa: FBT001 - as any step
        """Deliver the next bytes, and the quiet ones before them."""
        is_quiet = True
        while is_quiet and self.packets:
            due, data = self.packets.popleft()
            is_quiet = _is_quiet(data)
            self.socket.arrive(data)
        self.flush()

    def flush(self) -> None:
        """Deliver due quiet bytes at the front of the queue."""
        while self.packets and self.packets[0][0] <= self._clock.now:
            if not _is_quiet(self.packets[0][1]):
                return
            self.socket.arrive(self.packets.popleft()[1])


def _is_quiet(data: bytes) -> bool:
    """Return whether bytes contain only frames that tests do not observe."""
    flags = [is_quiet for _, is_quiet in frame_words(data)]
    return bool(flags) and all(flags)


def _describe_frames(data: bytes) -> str:
    """Describe the frames in some bytes."""
    if not data:
        return "the end of the connection"
    words: dict[str, int] = {}
    for word, is_quiet in frame_words(data):
        if not is_quiet:
            words[word] = words.get(word, 0) + 1
    texts = [word if count == 1 else f"{count} x {word}" for word, count in words.items()]
    return ", ".join(texts) or f"{len(data)} bytes"


class SteppedClock(Clock):
    """A clock that holds packets in flight separately while the cluster is stepping."""

    def __init__(self) -> None:
        """Start at zero, not stepping."""
        super().__init__()
        self.is_stepping = False
        self.streams: dict[SimulatedSocket, OnTheWay] = {}

    def plan_at(self, when: float, event: Callable[..., object], *args: Any) -> None:
        """Schedule an event; while stepping, arrivals are queued for their steps instead."""
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
        """Stop stepping; packets in flight arrive at their times."""
        self.is_stepping = False
        for stream in self.streams.values():
            for due, data in stream.packets:
                self.plan_at(max(due, self.now), stream.socket.arrive, data)
        self.streams.clear()


def is_users(runnable: Runnable) -> bool:
    """Return whether a turn is a user's: of an actor outside of callboard, or of asyncio."""
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
    """Return the reminders of actors, and the futures that their handlers await."""
    awaited: set[object] = set()
    for cell in cells:
        if cell.task is not None:
            awaited.add(cell.task.waiting_for)
        if cell.rare is not None:
            awaited |= cell.rare.reminders
            awaited.update(task.waiting_for for task in cell.rare.tasks)
    return awaited


def _has_work(cell: Cell) -> bool:
    """Return whether a turn of an actor would do anything; False while its handler awaits."""
    if cell.end is not None or cell.reason is not None:
        return cell.reason is None  # an ended actor only counts dead letters
    if cell.attention and cell.is_paused:
        return False
    return cell.task is None or cell.task.ready


class SteppedRunner(SimulatedRunner):
    """Executes callboard's own work at once; actors wait until the cluster chooses them."""

    is_stepping = False
    _chosen: Runnable | None = None

    def take(self, runnable: Runnable) -> None:
        """Execute one step of an actor: a message, or its handler up to the next await."""
        self.ready.remove(runnable)
        self._chosen = runnable
        self.turn()

    def _step(self) -> bool:
        """Execute the chosen step, if there is one, and callboard's own work."""
        if not self.is_stepping:
            return super()._step()
        chosen, self._chosen = self._chosen, None
        if chosen is not None:
            task = getattr(chosen, "task", None)
            with short_turns(int(task is None or not task.ready)):
                chosen.run()
        for runnable in [candidate for candidate in self.ready if not is_users(candidate)]:
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
        """Whether the node is neither frozen nor blocked by its disk."""
        return not self.is_paused and not self._is_waiting()

    def next_timer(self, excluded: Container[object]) -> float | None:
        """Return the simulation time of the next timer of a user's actor or ask."""
        dues = [
            when for when, timer in self.pending_timers() if _is_users_timer(timer, excluded)
        ]
        asks = self.unanswered_asks()
        dues += [ask.deadline for ask in asks if ask.deadline is not None]
        return self.node_clock.outside(min(dues)) if dues else None


def _is_users_timer(timer: Timer, excluded: Container[object]) -> bool:
    """Return whether a timer belongs to a user's actor: a pause, a reminder, or asyncio's."""
    callback = timer.callback
    if callback is Pause.end:
        return timer.args[0]() not in excluded
    owner = getattr(callback, "__self__", None)
    return isinstance(owner, Reminder | RunnerLoop | Future) and owner not in excluded


class _Steady(random.Random):
    """A constant random source for the network: the plan alone decides about orders."""

    def random(self) -> float:
        """Return 0.5."""
        return 0.5


class SteppedCluster(Cluster):
    """A cluster whose steps are chosen by a plan; `@schedule_test` passes it to a test."""

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
        """Create an empty cluster.

        Args:
            plan: chooses each step.
            seed: seed of the random source.
            late: virtual seconds by which a step may be later than usual.
            faults: possible faults; each occurs at most once, when the plan chooses it.
            most: maximum number of chosen steps; afterwards the run continues as usual.
            compares: whether to compute fingerprints of states.
        """
        super().__init__(seed)
        self.clock: SteppedClock = SteppedClock()
        self.network = SimulatedNetwork(self.clock, _Steady(), self.trace)
        #: The executed steps.
        self.rows: list[Row] = []
        self._plan, self._late, self._most = plan, late, most
        self._faults = list(faults)
        self._unrest = FaultInjector(self, ())
        self._names: dict[object, str] = {}
        self._since: dict[object, float] = {}
        self._rests_at = -1
        self._is_quiet = False
        self._print = Fingerprint() if compares else None
        self._histories: list[History] = []

    def __call__(self, *args: Any, **options: Any) -> list[Node]:
        """Create linked nodes, as `Cluster` does, without choosing steps."""
        with self.in_order():
            return super().__call__(*args, **options)

    @contextmanager
    def in_order(self) -> Iterator[None]:
        """Run the block as in an ordinary simulation, without choosing steps."""
        was_quiet, self._is_quiet = self._is_quiet, True
        self._stepping(is_so=False)
        try:
            yield
        finally:
            self._is_quiet = was_quiet

    def close(self) -> None:
        """Close all running nodes."""
        with self.in_order():
            super().close()

    def _stepping(self, *, is_so: bool) -> None:
        """Start stepping, or continue as an ordinary simulation."""
        if not is_so:
            self.clock.end_steps()
        self.clock.is_stepping = is_so
        for runner in self._runners():
            runner.is_stepping = is_so
            if not is_so and runner.ready and not runner.is_paused:
                runner.resume()

    def _runners(self) -> list[SteppedRunner]:
        """Return the runners of running nodes."""
        runners = [runner_of(node) for node in self.nodes]
        return [
            runner
            for runner in runners
            if isinstance(runner, SteppedRunner) and not runner.closed
        ]

    def run_until(self, condition: Callable[[], bool], limit: float) -> bool:
        """Execute steps until a condition holds, for at most `limit` virtual seconds."""
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
            if not self._advance(end):
                self.clock.now = max(self.clock.now, end)
                return condition()
        return True

    def _advance(self, end: float) -> bool:
        """Do callboard's own work or a step; return False if nothing is due before `end`."""
        clock = self.clock
        if clock.run_due() or self._awake:
            self._take_turns()
            return True
        steps = self._steps(end)
        first = steps[0] if steps else None
        if all(step.who == TIME for step in steps):
            self._check_deadlock()
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
        """Return the possible next steps, the usual choice first."""
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
        own_waits = _waits_of(filter(_is_ours, self._cells()))
        timers = [runner.next_timer(own_waits) for runner in self._runners()]
        dues = [due for due in timers if due is not None]
        if dues:
            steps.append(NextStep(TIME, min(dues), partial(self._let_pass, min(dues))))
        steps.sort(key=lambda step: step.due)
        if not steps or steps[0].due > end:
            return []
        latest = min(end, steps[0].due + self._late)
        return [step for step in steps if step.due <= latest]

    def _choose(self, steps: list[NextStep]) -> None:
        """Choose a step by the plan, and execute it."""
        steps += [
            NextStep(str(fault), self.now, partial(self._fail, fault)) for fault in self._faults
        ]
        could = tuple(step.who for step in steps)
        number = len(self.rows) + 1
        state = None
        if any(isinstance(step.about, RunnerLoop) for step in steps):
            self._print = None  # effects of asyncio's callbacks cannot be fingerprinted
        if self._print is not None:
            state = self._print.state(self._scene(), could)
        index = self._plan(number, could) if len(could) > 1 else 0
        step = steps[index]
        row = Row(number, self.now, step.who, self._description(step), could, state)
        self.rows.append(row)
        if number > STANDSTILL_STEPS and self.rows[-STANDSTILL_STEPS].when == self.now:
            msg = (
                f"the virtual time does not pass: {STANDSTILL_STEPS:,} steps in a row were at "
                f"{self.now:g} s"
            )
            raise TimeStandsStill(msg)
        subject = step.about if isinstance(step.about, Cell) else f"{row.who}: {row.what}"
        if self._print is not None:
            self._print.step_begins(subject)
        step.run(index == 0)
        row.when = self.now
        while self.clock.run_due() or self._awake:
            self._take_turns()
        if step.who == TIME:
            row.what = f"{self.now:g} s have passed"
        if self._print is not None:
            self._print.record_step(subject, self._scene())

    def _scene(self) -> StateFingerprint:
        """Return the current state, for its fingerprint."""
        runners = self._runners()
        cells = self._cells()
        own_cells = list(filter(_is_ours, cells))
        own_waits = _waits_of(own_cells)
        timers = [
            (when, timer)
            for runner in runners
            for when, timer in runner.pending_timers()
            if _is_users_timer(timer, own_waits)
        ]
        packets = [
            (self.name(stream), *stream.packets)
            for stream in self.clock.streams.values()
            if stream.packets
        ]
        positions = tuple(
            (operation.began, operation.ended)
            for history in self._histories
            for operation in history.operations
        )
        handled = sum(cell.handled for cell in own_cells)
        return StateFingerprint(self.now, cells, timers, packets, positions, handled)

    def _cells(self) -> list[Cell]:
        """Return the actors of running nodes."""
        running = [node for node in self.nodes if self.is_running(node)]
        return [cell for node in running for cell in node.context.contexts.values()]

    def history(self) -> History:
        """Return an empty history that uses the clock of the cluster."""
        self._histories.append(super().history())
        return self._histories[-1]

    def _may_fail(self, steps: Sequence[NextStep]) -> bool:
        """Offer the faults to the plan while no step is possible, once for each such state."""
        if steps or not self._faults or self._rests_at == len(self.rows):
            return False
        self._choose([NextStep(NOTHING, self.now, lambda _: None)])
        self._rests_at = len(self.rows)
        return True

    def _arrive(self, stream: OnTheWay, is_usual: bool) -> None:  # noqa: FBT001 - as any step
        """Deliver bytes; the usual choice first advances time to their arrival."""
        due = stream.due
        if is_usual and due is not None and due > self.now:
            self.clock.now = due
        stream.arrive(is_usual)

    def _let_pass(self, until: float, _: bool) -> None:  # noqa: FBT001 - as any step
        """Advance time; pending actors and connections are delayed by it."""
        clock = self.clock
        while (due := clock.next_event_at) is not None and due <= until:
            clock.now = max(clock.now, due)
            while clock.run_due() or self._awake:
                self._take_turns()
        clock.now = max(clock.now, until)

    def _fail(self, fault: Fault, _: bool) -> None:  # noqa: FBT001 - as any step
        """Start a fault."""
        self._faults.remove(fault)
        self._unrest.begin(fault)

    # --- names and descriptions ---

    def name(self, subject: object) -> str:
        """Return the unique name of an actor, a stream or an event loop in this run."""
        if subject not in self._names:
            name, count = self._first_name(subject), 1
            names = set(self._names.values())
            while (f"{name} {count}" if count > 1 else name) in names:
                count += 1
            self._names[subject] = f"{name} {count}" if count > 1 else name
        return self._names[subject]

    def _first_name(self, subject: object) -> str:
        """Return a name without a number, for the first object with this name."""
        if isinstance(subject, Cell):
            return f"{type(subject.actor).__name__} on {subject.runner.name}"
        if isinstance(subject, OnTheWay):
            names = {host: node.name for node, host in self._hosts.items()}
            source, target = subject.socket.remote[0], subject.socket.host
            return f"{names.get(source, source)} to {names.get(target, target)}"
        runner = next(
            (candidate for candidate in self._runners() if candidate.loop is subject), None
        )
        return f"asyncio on {runner.name if runner is not None else '?'}"

    def _description(self, step: NextStep) -> str:
        """Describe the input of a step."""
        subject = step.about
        if isinstance(subject, OnTheWay):
            return subject.what
        if isinstance(subject, RunnerLoop):
            return "goes on"
        if not isinstance(subject, Cell):
            return "happens" if step.who not in {TIME, NOTHING} else ""
        if subject.end is not None:
            return f"ends ({subject.end[0]})"
        if subject.task is not None and subject.task.ready:
            return "goes on"
        if not subject.depth:
            return "goes on"
        message, sender = subject.waiting[0]
        kind = type(message).__name__
        if kind == "Resume":
            return "goes on"
        text = safe_repr(
            getattr(message, "message", message) if kind == "Envelope" else message, _SHORT
        )
        text = kind if " object at 0x" in text else text
        is_from_other = isinstance(sender, Cell) and sender is not subject
        return f"{text} from {self.name(sender)}" if is_from_other else text

    # --- deadlocks ---

    def _check_deadlock(self) -> None:
        """Check for cycles of actors that wait for each other, when only time could advance.

        Raises:
            Deadlock: a cycle was found.
        """
        cells = self._cells()
        cells_by_ref = {cell.ref: cell for cell in cells}
        waits = {
            cell: other
            for cell in cells
            if (other := _awaited_cell(cell, cells_by_ref)) is not None
        }
        for start in waits:
            path, cell = [start], waits[start]
            while cell not in path and cell in waits:
                path.append(cell)
                cell = waits[cell]
            if cell is start:
                names = " -> ".join(map(self.name, [*path, start]))
                message = f"actors wait for each other's answers: {names}"
                raise Deadlock(message)


def _take(runner: SteppedRunner, runnable: Runnable, _: bool) -> None:  # noqa: FBT001
    """Execute a step of an actor."""
    runner.take(runnable)


def _awaited_cell(cell: Cell, cells_by_ref: dict[Any, Cell]) -> Cell | None:
    """Return the cell whose answer a blocked cell awaits, if that one is blocked as well."""
    task = cell.task
    if task is None or task.ready or not isinstance(task.waiting_for, Future):
        return None
    other = cells_by_ref.get(task.waiting_for.asked)
    if other is None or other.task is None or not other.depth:
        return None
    is_local = other.runtime is cell.runtime
    if is_local and all(sender is not task.waiting_for for _, sender in other.waiting):
        return None
    return other
