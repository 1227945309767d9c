"""The runtime of one node's local actors: starts, finds and ends them.

`actors` treats a node id as opaque bytes. `Remote`, which `proxies` implements, connects the
runtime to other nodes.

Higher layers use the public methods and attributes of a runtime, never its runner or cells:

    now, post, call_at, call_later      the clock, and calls on the node's thread
    random, loop, is_runner_thread      randomness, asyncio, the check for the node's thread
    start_actor, contexts, ref_of       start an actor, list the living ones, refer to one
    monitor, set_deadline, dead_letter  the end of actors and of asks
    report, listen, subscribed          events
    is_closed, stopped                  the end of the node
    shutdown                            waits and steps that end with the node

The internal view of an actor for its own code is `SystemActor.context`.
"""

import contextlib
import itertools
import logging
import os
from collections.abc import Callable, Container, Hashable, Iterator, Mapping
from functools import partial
from typing import Any, ClassVar, Final, TypeVar

from callboard import locks
from callboard.actors import events
from callboard.actors.asking.reply_cache import ReplyCache
from callboard.actors.cell import Cell, Handlers
from callboard.actors.dispatch import NO_HANDLERS, DispatchTable
from callboard.actors.envelope import Envelope, traced_as
from callboard.actors.errors import ActorDown, InvalidAddress, NodeClosed, ResultTimeout
from callboard.actors.exit_reason import ExitReason
from callboard.actors.future import Asked, AskList, Future, waiting
from callboard.actors.mailbox import Remote, options_of, refuse_abstract
from callboard.actors.reference import (
    LIMIT_MARGIN,
    ActorRef,
    Asker,
    Down,
    ReplyRef,
    ReplyTarget,
    Sender,
    checked_ref,
    current_cell,
)
from callboard.actors.runner.runner import Runner
from callboard.actors.supervision.succession import Succession
from callboard.actors.values import Event, Message
from callboard.actors.waits.shutdown import SHUTDOWN_TIMEOUT, Phase, Shutdown
from callboard.arguments import seconds as checked
from callboard.support import after_fork
from callboard.support.calls import Arguments, Keywords
from callboard.support.text import class_name, logged, safe_repr

_log = logging.getLogger("callboard.actors")

A = TypeVar("A")
C = TypeVar("C", bound=Cell)
T = TypeVar("T")

#: Actor numbers below this are reserved for actors of every node.
FIRST_NUMBER: Final = 16

LAST_NUMBER: Final = 2**32 - 1

#: Limit of different warnings about mistakes of a program; each is logged once.
WARNINGS: Final = 1_000


class LocalOnly:
    """The `Remote` of a runtime without other nodes."""

    held_numbers: Container[int] = ()

    def ref_text(self, node: bytes, number: int) -> str:
        """Return the text of a ref; without an address it has only node and number."""
        return f"basp:///{number}@{node.hex()}"

    def remote_ref(self, node: bytes, number: int) -> ActorRef:
        """Raise `InvalidAddress`: this runtime is alone."""
        msg = f"actor {number} is on {node.hex()}; this system has no other nodes"
        raise InvalidAddress(msg)

    def hosting_of(self, _number: int) -> None:
        """Return None, as no other node sends messages."""

    def actor_ended(self, _context: Any, _down: Down) -> None:
        """Do nothing: this runtime is alone."""

    def is_reachable(self, _node: bytes) -> bool:
        """Return False: this runtime is alone."""
        return False


class NextAsk:
    """Replaces the list of recent asks until the next ask, which it times."""

    def __init__(self, runtime: "Runtime") -> None:
        self._runtime = runtime
        runtime.fresh_asks = self

    def append(self, future: Future) -> None:
        """Time an ask, and restore the list."""
        runtime = self._runtime
        runner = runtime.runner
        fresh = runtime.fresh_asks = runner.deadlines.fresh
        fresh.append(future)
        since, asks = runtime.now(), runner.sampler.asks
        future.add_done_callback(lambda _: asks.add(runtime.now() - since))
        address = future.asked
        if isinstance(address, Asked) and isinstance(address.target, Cell):
            runner.sampler.follow(address.target, since, offset=1)


class Runtime:
    """The actors of one node."""

    #: Slots for attributes of frequent use: an object with more than 30 attributes does not
    #: share the keys of its dictionary, which makes each access to an attribute slower.
    __slots__ = (
        "__dict__", "__weakref__", "_lock", "_number", "_reply_numbers", "_subscribers",
        "_tables", "_warned", "contexts", "counters", "fresh_asks", "is_closed",
        "now", "remote", "runner", "shutdown",
    )  # fmt: skip

    #: Called with each event before all subscribers, to store recent events. It does not count
    #: as a subscriber, for which spawns and ends of actors would be reported.
    recorder: Callable[[Event], object] = staticmethod(lambda _: None)

    #: Creates the Thespian system of a runtime; set by `callboard.actors.thespian`.
    system_base: ClassVar[Callable[["Runtime"], object]]

    def __init__(
        self, name: str = "", node_id: bytes | None = None, runner: Runner | None = None
    ) -> None:
        self.name = name or "node"
        self.node_id = node_id or os.urandom(15) + os.getpid().to_bytes(3)
        self.runner = runner or Runner(self.name)
        #: The counters of the node.
        self.counters = events.Counters()
        #: Called with each dead letter: the ref, the message, and the sender.
        self.on_dead_letter: list[Callable[[ActorRef, Any, Sender | None], None]] = []
        self._subscribers: list[Callable[[object], None]] = []
        self.runner.times.on_slow = self._record_slow
        #: Returns the monotonic time in seconds; all code of this node reads the time here.
        self.now = self.runner.now
        #: Calls `callback(*args)` soon on the node's thread; can be called from any thread.
        #: Calls `callback(*args)` soon on the node's thread; can be called from any thread.
        self.post = self.runner.post
        #: Schedules a turn of a runnable, like one of an actor; can be called from any thread.
        self.schedule = self.runner.schedule
        #: Calls on the node's thread at a time of `now()`; can be called from any thread.
        self.call_at = self.runner.call_at
        #: Calls on the node's thread after some seconds; can be called from any thread.
        self.call_later = self.runner.call_later
        #: Makes sure that deadlines of asks are checked before a time of `now()`.
        self.awake_by = self.runner.awake_by
        #: Whether this is a thread that runs the node's handlers and callbacks.
        self.is_runner_thread = self.runner.is_runner_thread
        #: The node's source of randomness.
        self.random = self.runner.random
        #: The asyncio event loop of the node's coroutine handlers.
        self.loop = self.runner.loop
        #: An event that is set after the node's last thread has ended.
        self.stopped = self.runner.stopped
        self.fresh_asks: AskList = self.runner.deadlines.fresh
        #: The shutdown sequence of the node.
        self.shutdown = Shutdown(self.name, self.now, self.call_later)
        self.kept = ReplyCache(self.now, self.call_later)
        self.remote: Remote = LocalOnly()
        self._warned: set[object] = set()
        after_fork.register(self, Runtime._drop_copy)
        #: The actors of this node by number; changed by the runtime only.
        self.contexts: dict[int, Cell] = {}
        #: Whether the end of the node has begun.
        self.is_closed = False
        #: The running errands, see `callboard.actors.system_actor`.
        self.errands: set[Any] = set()
        #: The object that actors see as `self.node`.
        self.node: Any = None
        #: Starts actors on other nodes: (class, args, kwargs, node); None without others.
        self.spawn_elsewhere: Callable[..., Future[ActorRef]] | None = None
        #: The successors of actors that supervisors restart.
        self.succession = Succession()
        #: Creates actors of plain Thespian classes; see `actors.thespian`, as for the next.
        self.plain: Any = None
        self.thespian: Any = None
        #: Called with each actor that ended, on the runner's thread.
        self.on_end: list[Callable[[Any, Down], None]] = []
        self._number = self.runner.random.randrange(FIRST_NUMBER, 2**31)
        self._lock = locks.lock("actors of a node", 740)
        self._tables: dict[type, DispatchTable] = {}
        self._reply_numbers = itertools.count(1)
        self._emptied = locks.condition_on(self._lock)
        self._when_empty: Future[None] | None = None  # for `await_ends` in a simulation

    def connect(
        self,
        node: Any,
        remote: Remote,
        spawn_elsewhere: Callable[..., Future[ActorRef]],
    ) -> None:
        """Set the object that actors see as `self.node`, and the way to other nodes."""
        self.node = node
        self.remote = remote
        self.spawn_elsewhere = spawn_elsewhere
        self.on_end.append(remote.actor_ended)
        self.runner.sampler.time_next_ask = partial(NextAsk, self)

    def _drop_copy(self) -> None:
        """Clear all mailboxes in a forked process, so that each new message is refused."""
        for cell in list(self.contexts.values()):
            cell.leave()

    async def in_time(self, future: Future[T], seconds: float, late: Exception) -> T:
        """Await a future; raise `late` if it is not done after some seconds."""
        timer = self.call_later(checked(seconds), future.set_exception, late)
        try:
            return await self.shutdown.guard(future)  # the timer never fires on a closed node
        finally:
            timer.cancel()

    # --- actors ---

    def start_actor(
        self,
        actor_class: type[A],
        args: Arguments = (),
        kwargs: Keywords | None = None,
        *,
        parent: Cell | None = None,
        number: int | None = None,
    ) -> ActorRef[A]:
        """Create an actor and return its ref. Its `__init__` runs on the calling thread.

        Raises the exception of `__init__`, and `NodeClosed` after the end.
        """
        if self.is_closed:
            msg = f"{self.name} is closed; spawn on a node that runs"
            raise NodeClosed(msg)
        if parent is not None and parent.reason is not None:
            msg = f"{parent.ref} has ended; its children would have no parent"
            raise ActorDown(msg, str(parent.reason), parent.detail)
        self.runner.start()
        actor_class, options = options_of(actor_class)
        cell = self._new_cell(actor_class, parent, number)
        if options.mailbox is not None:
            cell.bound_mailbox(options.mailbox)
        if options.detached:
            cell.runner = self.runner.detached(f"{self.name}-{actor_class.__name__}")
        outer = current_cell.get()
        current_cell.set(cell)
        try:
            attach = getattr(actor_class, "attach", None)
            if attach is not None:
                cell.actor = attach(cell, args, kwargs or {})
            else:
                cell.actor = self.plain.attach(actor_class, cell, args, kwargs or {})
            for opened in cell.table.opened:
                opened(cell)
        except BaseException as error:
            self._give_up(cell, f"{class_name(error)} in its __init__")
            raise
        finally:
            current_cell.set(outer)
        if cell.runner is not self.runner:
            cell.runner.start()
        cell.open(trap_exit=options.trap_exit)
        if self._subscribers:
            self.report(events.ActorStarted(cell.ref, type(cell.actor).__qualname__))
        return cell.ref

    def _new_cell(self, actor_class: type, parent: Cell | None, number: int | None) -> Cell:
        """Create the cell of an actor and register it under its number."""
        table = self.table_of(actor_class)
        kind = actor_class if hasattr(actor_class, "cell_class") else self.plain
        with self._lock:
            while True:
                chosen = self._next_number() if number is None else number
                cell = kind.cell_class(self, self.runner, chosen, table, parent, self.now())
                # `setdefault` is atomic: a nested spawn may have taken the number.
                if number is not None:
                    self.contexts[chosen] = cell
                    break
                if self.contexts.setdefault(chosen, cell) is cell:
                    break
            self.counters.spawned += 1
        if parent is not None:
            if parent.children is None:
                parent.children = {}
            parent.children[cell] = None
        return cell  # type: ignore[no-any-return]

    def place(self, make: Callable[[int], C]) -> C:
        """Create a cell without an actor, and register it under a free number."""
        with self._lock:
            while True:
                cell = make(self._next_number())
                if self.contexts.setdefault(cell.number, cell) is cell:  # as in `_new_cell`
                    return cell

    def table_of(self, handlers: Handlers) -> DispatchTable:
        """Return the dispatch table of a class (stored), of functions, or of an object."""
        if not isinstance(handlers, type):
            if isinstance(handlers, Mapping):
                return DispatchTable.of_functions(handlers)
            return DispatchTable.of_object(handlers)
        table = self._tables.get(handlers)
        if table is None:
            refuse_abstract(handlers)
            table = self._tables[handlers] = DispatchTable(handlers)
        return table

    def _next_number(self) -> int:
        """Return a number that no actor has, and for which no other node holds a proxy.

        The caller must hold the lock.
        """
        number = self._number
        while True:
            number = number + 1 if number < LAST_NUMBER else FIRST_NUMBER
            if number not in self.contexts and number not in self.remote.held_numbers:
                self._number = number
                return number

    def _give_up(self, cell: Cell, detail: str) -> None:
        """End an actor whose `__init__` raised, with its children, links and messages."""
        if cell.parent is not None and cell.parent.children is not None:
            cell.parent.children.pop(cell, None)
        cell.parent = None  # the creator gets the exception instead of a message
        cell.abort(ExitReason.ERROR, detail)

    def forget(self, cell: Cell, down: Down) -> None:
        """Remove an ended actor from the tables, and report its end."""
        with self._lock:
            self.contexts.pop(cell.number, None)
            reason = str(cell.reason)
            self.counters.ends[reason] = self.counters.ends.get(reason, 0) + 1
            self.counters.handled_by_ended += cell.handled
            is_empty = not self.contexts
            if is_empty:
                self._emptied.notify_all()
        if is_empty and self._when_empty is not None:
            self._when_empty.set_result(None)
        if cell.runner is not self.runner:
            cell.runner.stop()
        for observer in self.on_end:
            observer(cell, down)
        if self._subscribers:
            self.report(events.ActorStopped(cell.ref, str(cell.reason), cell.detail))

    # --- refs ---

    def ref_of(self, node: bytes, number: int) -> ActorRef:
        """Return the ref of an actor by node and number, local or remote, living or ended."""
        if node != self.node_id:
            return self.remote.remote_ref(node, number)
        cell = self.contexts.get(number)
        return cell.ref if cell is not None else self.ended_ref(number)

    def is_reachable(self, node: bytes) -> bool:
        """Return whether a path leads to another node."""
        return self.remote.is_reachable(node)

    @property
    def nobody(self) -> ActorRef:
        """The ref of no actor: the sender of an anonymous message for Thespian's handlers."""
        return self.ended_ref(0)

    def ended_ref(self, number: int | None = None) -> ActorRef:
        """Return the ref of an actor that has ended or never existed."""
        if number is None:
            with self._lock:
                number = self._next_number()
        cell = Cell(self, self.runner, number, NO_HANDLERS, None, self.now(), running=False)
        cell.reason, cell.attention = ExitReason.NOT_FOUND, True
        return cell.ref

    def takes(self, number: int) -> bool:
        """Return whether messages to an actor's number have a receiver."""
        return number in self.contexts or self.succession.successor(number) is not None

    def reply_ref(self, asker: Asker) -> ActorRef:
        """Return the one-shot address of an asker."""
        return ReplyRef(self, self.node_id, next(self._reply_numbers), ReplyTarget(self, asker))

    def record_late_answer(self) -> None:
        """Count an answer that no asker receives: a second one, or one after the timeout."""
        self.counters.late_answers += 1

    def ref_text(self, ref: ActorRef) -> str:
        """Return the text of a ref."""
        return self.remote.ref_text(ref.node_id, ref.actor_id)

    def set_deadline(self, future: Future, timeout: float, limit: float | None = None) -> bool:
        """Fail an ask after `timeout` seconds, or at `limit` if that is clearly earlier.

        `limit` is the deadline of the ask that is being handled. If both asks have the same
        timeout, `limit` is only a moment earlier, and is ignored, so that the message to
        another node needs no deadline. Returns whether `limit` applies.
        """
        now = self.now()
        deadline = now + timeout
        is_limited = False
        if limit is not None and limit < deadline - LIMIT_MARGIN:
            is_limited = True
            deadline = max(limit, now)
            timeout = deadline - now
        future.timeout = timeout
        future.deadline = deadline
        self.fresh_asks.append(future)
        return is_limited

    def monitor(self, ref: ActorRef) -> Future[Down]:
        """Return a future that is done when the actor ends or is lost."""
        future: Future[Down] = Future(checked_ref(ref, "monitor()"))
        ref.target.monitor(future, future.set_result)
        return self.shutdown.guard(future)

    def thespian_system(self) -> Any:
        """Return the Thespian system of this runtime, created on first use."""
        if self.thespian is None:
            type(self).system_base(self)
        return self.thespian

    # --- events ---

    def dead_letter(self, ref: ActorRef, message: Message, sender: Sender | None) -> None:
        """Count a message that no handler will receive, and report it."""
        self.counters.dead_letters += 1
        content = message.message if type(message) is Envelope else message
        with traced_as(message):
            for observer in self.on_dead_letter:
                observer(ref, content, sender)
            if self._subscribers:
                self.report(events.DeadLetter(ref, content))

    def log_failure(self, cell: Cell, text: str, error: BaseException) -> None:
        """Count, log and report an exception that ends an actor."""
        self.counters.failures += 1
        name = type(cell.actor).__name__
        logged(_log, "%s (%s) failed: %s", name, cell.ref, text, error=error)
        self.report(events.ActorFailed(cell.ref, text))

    def warn_once(self, key: Hashable, text: str) -> None:
        """Log a mistake of the program the first time; ignore repetitions."""
        if key not in self._warned and len(self._warned) < WARNINGS:
            self._warned.add(key)
            _log.warning("%s", text)

    def _record_slow(self, cell: Cell, handler: str, seconds: float) -> None:
        """Count, log and report a handler that holds its thread for long."""
        self.counters.slow_handlers += 1
        text = (
            "%s of %s (%s) has run for %.1f s; await instead of blocking, or detach the actor"
        )
        _log.warning(text, handler, type(cell.actor).__name__, cell.ref, seconds)
        self.report(events.SlowHandler(cell.ref, handler, seconds))

    def report(self, event: Event) -> None:
        """Report an event to all subscribers."""
        for subscriber in (self.recorder, *self._subscribers):
            try:
                subscriber(event)
            except BaseException as error:  # noqa: BLE001  # must not fail the reporting code
                logged(_log, "a subscriber failed at %s", safe_repr(event), error=error)

    def listen(self, subscriber: Callable[[Event], None]) -> Callable[[], None]:
        """Call `subscriber(event)` for each event; return a function that stops this.

        Can be called from any thread.
        """
        self._subscribers = [*self._subscribers, subscriber]

        def stop() -> None:
            self._subscribers = [s for s in self._subscribers if s is not subscriber]

        return stop

    @contextlib.contextmanager
    def subscribed(self, subscriber: Callable[[Event], None]) -> Iterator[None]:
        """Call `subscriber(event)` for each event during the block.

        Can be called from any thread.
        """
        stop = self.listen(subscriber)
        try:
            yield
        finally:
            stop()

    @property
    def handled(self) -> int:
        """Number of messages that handlers were called for."""
        with self._lock:
            living = sum(cell.handled for cell in list(self.contexts.values()))
            return self.counters.handled_by_ended + living

    @property
    def handler_seconds(self) -> dict[str, float]:
        """Seconds in handlers by class name of the actor, as sampled."""
        return dict(self.runner.times.seconds)

    # --- the end ---

    def end_actors(self, timeout: float = SHUTDOWN_TIMEOUT) -> bool:
        """End all actors with `shutdown`; return False if a handler did not return in time."""
        self.is_closed = True
        if not self.runner.is_started:
            return True
        self._end_all()
        return self.await_ends(timeout)

    def _end_all(self) -> None:
        """Request the end of all actors."""
        for cell in list(self.contexts.values()):
            cell.kill(ExitReason.SHUTDOWN)

    def await_ends(self, timeout: float = SHUTDOWN_TIMEOUT) -> bool:
        """Wait until all actors have ended; return whether they have.

        A handler that calls this does not wait.
        """
        if self.is_runner_thread():
            return not self.contexts
        wait = waiting.get()
        if wait is not None:
            self._when_empty = Future(self.name)
            if self.contexts:
                with contextlib.suppress(ResultTimeout):
                    wait(self._when_empty, timeout)
            return not self.contexts
        with self._emptied:
            return self._emptied.wait_for(lambda: not self.contexts, timeout)

    def close(self, timeout: float = SHUTDOWN_TIMEOUT) -> None:
        """Fail every pending wait and stop the runner, after the actors have ended."""
        self.is_closed = True
        if self.runner.is_started:
            self._end_all()
        self.shutdown.begin(Phase.ENDED)
        self.runner.stop()
        if not self.is_runner_thread():
            self.stopped.wait(timeout)
