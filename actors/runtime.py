"""The runtime of one node's local actors: who lives, who ends, and how they are reached.

`actors` knows a node as opaque bytes. Whatever leads to other nodes comes in through `Remote`,
which `proxies` implements.
"""

import contextlib
import itertools
import os
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from actors.accounting import Accounting
from actors.answers import Asker
from actors.behavior import Handlers
from actors.cell import Cell
from actors.current import current_cell, waiting
from actors.dispatch import DispatchTable
from actors.errors import ActorDown, InvalidAddress, NodeClosed, ResultTimeout
from actors.events import ActorStarted, ActorStopped
from actors.exit_reason import ExitReason
from actors.future import Future
from actors.life import Mortal
from actors.options import SpawnOptions, options_of
from actors.reference import LIMIT_MARGIN, ActorRef, ReplyRef, ReplyTarget
from actors.runner import Runner
from actors.signals import Down

if TYPE_CHECKING:
    from actors.actor import Actor

A = TypeVar("A", bound="Actor")
C = TypeVar("C", bound=Cell)
T = TypeVar("T")

FIRST_NUMBER: Final = 16
"""Actor numbers below are reserved for actors that every node has."""

LAST_NUMBER: Final = 2**32 - 1

SHUTDOWN_TIMEOUT: Final = 5.0
"""Seconds that closing waits for handlers that are under way."""


class Remote(Protocol):
    """What leads from a runtime to other nodes."""

    def ref_text(self, node: bytes, number: int) -> str:
        """Return the text of a ref."""

    def remote_ref(self, node: bytes, number: int) -> ActorRef[Any]:
        """Return the ref of an actor on another node."""


class LocalOnly:
    """A runtime without other nodes."""

    def ref_text(self, node: bytes, number: int) -> str:
        """Return the text of a ref; without an address it names only node and number."""
        return f"basp:///{number}@{node.hex()}"

    def remote_ref(self, node: bytes, number: int) -> ActorRef[Any]:
        """Refuse: there is no way to other nodes."""
        msg = f"actor {number} lives on {node.hex()}; this system has no other nodes"
        raise InvalidAddress(msg)


class Runtime(Accounting):
    """The actors of one node."""

    def __init__(
        self, name: str = "", node_id: bytes | None = None, runner: Runner | None = None
    ) -> None:
        self.name = name or "node"
        self.node_id = (
            node_id if node_id is not None else os.urandom(15) + os.getpid().to_bytes(3)
        )
        self.runner = runner or Runner(self.name)
        super().__init__()
        self.runner.times.on_slow = self._note_slow
        #: The time in seconds, and the asks that were made a moment ago.
        self.now = self.runner.now
        self.fresh_asks = self.runner.deadlines.fresh
        self.remote: Remote = LocalOnly()
        self.cells: dict[int, Cell] = {}
        self.closed = False
        #: The object that actors see as `self.node`.
        self.node: Any = None
        #: How children of supervisors start on other nodes: (class, args, kwargs, where); None
        #: without other nodes.
        self.spawn_elsewhere: Callable[..., Future[ActorRef[Any]]] | None = None
        #: How actors of plain Thespian classes are made, and the system base; see
        #: `actors.thespian`.
        self.plain: Any = None
        self.thespian: Any = None
        #: Told of each actor that ended, on the runner's thread: the proxies' side announces
        #: it.
        self.on_end: list[Callable[[Any, Down], None]] = []
        #: Tells whether other nodes know a number, though no actor here has it.
        self.is_number_held: Callable[[int], bool] = lambda _: False
        self._number = self.runner.random.randrange(FIRST_NUMBER, 2**31)
        self._lock = threading.Lock()
        self._tables: dict[type, DispatchTable] = {}
        self._reply_numbers = itertools.count(1)
        self._emptied = threading.Condition(self._lock)
        self._when_empty: Future[None] | None = None  # the same for a simulation

    # --- actors ---

    def spawn(
        self,
        actor_class: type[A],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        *,
        parent: Cell | None = None,
        number: int | None = None,
    ) -> ActorRef[A]:
        """Make an actor and return its ref. Its `__init__` runs on the calling thread.

        Raises whatever `__init__` raises, and `NodeClosed` after the end.
        """
        if self.closed:
            msg = f"{self.name} is closed; spawn on a node that runs"
            raise NodeClosed(msg)
        if parent is not None and not parent.alive:
            msg = f"{parent.ref} has ended; its children would have nobody"
            raise ActorDown(msg, str(parent.reason), parent.detail)
        self.runner.start()
        actor_class, options = options_of(actor_class)
        cell = self._new_cell(actor_class, parent, number)
        if options.mailbox is not None:
            cell.bound_mailbox(options.mailbox)
        if options.detached:
            cell.runner = self.runner.detached(f"{self.name}-{actor_class.__name__}")
        before = current_cell.get()
        current_cell.set(cell)
        try:
            if hasattr(actor_class, "attach"):
                cell.actor = actor_class.attach(cell, args, kwargs or {})
            else:
                cell.actor = self.plain.attach(actor_class, cell, args, kwargs or {})
        except BaseException as error:
            self._give_up(cell, f"{type(error).__qualname__} in its __init__")
            raise
        finally:
            current_cell.set(before)
        self._open(cell, options)
        return cell.ref

    def _new_cell(self, actor_class: type, parent: Cell | None, number: int | None) -> Cell:
        table = self.table_of(actor_class)
        with self._lock:
            kind = actor_class if hasattr(actor_class, "cell_class") else self.plain
            cell = kind.cell_class(
                self, self._next_number() if number is None else number, table, parent
            )
            self.cells[cell.number] = cell
            self.counters.spawned += 1
        if parent is not None:
            if parent.children is None:
                parent.children = {}
            parent.children[cell] = None
        return cell  # type: ignore[no-any-return]

    def place(self, make: Callable[[int], C]) -> C:
        """Give a cell that needs no actor a number, and make it reachable under that."""
        with self._lock:
            cell = make(self._next_number())
            self.cells[cell.number] = cell
        return cell

    def table_of(self, handlers: Handlers) -> DispatchTable:
        """Return the dispatch table of a class, kept; or of functions or an object, made."""
        if not isinstance(handlers, type):
            if isinstance(handlers, Mapping):
                return DispatchTable.of_functions(handlers)
            return DispatchTable.of_object(handlers)
        table = self._tables.get(handlers)
        if table is None:
            table = self._tables[handlers] = DispatchTable(handlers)
        return table

    def _next_number(self) -> int:
        number = self._number
        while True:
            number = number + 1 if number < LAST_NUMBER else FIRST_NUMBER
            if number not in self.cells and not self.is_number_held(number):
                self._number = number
                return number

    def _give_up(self, cell: Cell, detail: str) -> None:
        """End an actor that was not made: it may have children, links and messages already."""
        if cell.parent is not None and cell.parent.children is not None:
            cell.parent.children.pop(cell, None)
        cell.parent = None  # its creator gets the exception instead
        cell.abort(ExitReason.ERROR, detail)

    def _open(self, cell: Cell, options: SpawnOptions) -> None:
        cell.trap_exit = options.trap_exit
        cell.runner.start()
        cell.running = False
        if cell.depth or cell.end is not None:
            cell.scheduled = True
            cell.runner.schedule(cell)
        if self._subscribers:
            self.emit(ActorStarted(cell.ref, type(cell.actor).__qualname__))

    def forget(self, cell: Mortal) -> None:
        """Take an ended actor out of the table."""
        with self._lock:
            self.cells.pop(cell.number, None)
            reason = str(cell.reason)
            self.counters.ends[reason] = self.counters.ends.get(reason, 0) + 1
            self.counters.handled_by_ended += cell.handled
            if not self.cells:
                self._emptied.notify_all()
                if self._when_empty is not None:
                    self._when_empty.set_result(None)
        if cell.runner is not self.runner:
            self._end_thread_of(cell)
        if self.on_end:
            down = Down(cell.ref, cell.reason or "", cell.detail)
            for told in self.on_end:
                told(cell, down)
        if self._subscribers:
            self.emit(ActorStopped(cell.ref, str(cell.reason), cell.detail))

    def _end_thread_of(self, cell: Mortal) -> None:
        if cell.runner.is_started:
            cell.runner.stop()
        else:
            cell.runner.discard()

    # --- refs ---

    def make_ref(self, cell: Any) -> ActorRef[Any]:
        """Return a ref to a local cell."""
        return ActorRef(self, self.node_id, cell.number, cell)

    def ref_to(self, node: bytes, number: int) -> ActorRef[Any]:
        """Return the ref of an actor by its node and number, local or remote, alive or not."""
        if node != self.node_id:
            return self.remote.remote_ref(node, number)
        cell = self.cells.get(number)
        return cell.ref if cell is not None else self.ended_ref(number)

    @property
    def nobody(self) -> ActorRef[Any]:
        """The ref of no actor: who sent an anonymous message, for Thespian's handlers."""
        return self.ended_ref(0)

    def ended_ref(self, number: int | None = None) -> ActorRef[Any]:
        """Return the ref of an actor that is not there (any more)."""
        if number is None:
            with self._lock:
                number = self._next_number()
        cell = Cell(self, number, _NO_HANDLERS, None)
        cell.reason = ExitReason.NOT_FOUND
        cell.running = False
        return cell.ref

    def reply_ref(self, asker: Asker) -> ActorRef[Any]:
        """Return the one-shot address of an asker."""
        return ReplyRef(self, self.node_id, next(self._reply_numbers), ReplyTarget(self, asker))

    def ref_text(self, ref: ActorRef[Any]) -> str:
        """Return the text of a ref."""
        return self.remote.ref_text(ref.node_id, ref.actor_id)

    def set_deadline(self, future: Future[Any], timeout: float) -> None:
        """Let an ask fail after `timeout` seconds."""
        future.timeout = timeout
        future.deadline = self.now() + timeout
        self.fresh_asks.append(future)

    def set_deadline_within(
        self, future: Future[Any], timeout: float, limit: float | None
    ) -> bool:
        """Let an ask fail after `timeout` seconds, or at `limit` if that is clearly earlier.

        Returns whether it is. What was given the same timeout a moment ago is no limit: its
        time is over at about the same moment, and that need not be told to other nodes.
        """
        now = self.now()
        deadline = now + timeout
        is_limited = limit is not None and limit < deadline - LIMIT_MARGIN
        if is_limited:
            assert limit is not None
            deadline = max(limit, now)
            timeout = deadline - now
        future.timeout = timeout
        future.deadline = deadline
        self.fresh_asks.append(future)
        return is_limited

    def monitor(self, ref: ActorRef[Any]) -> Future[Down]:
        """Return a future that is done when the actor ends or is lost."""
        future: Future[Down] = Future(ref)
        ref.target.monitor(future, future.set_result)
        return future

    # --- the end ---

    def end_actors(self, timeout: float = SHUTDOWN_TIMEOUT) -> bool:
        """End all actors with `shutdown`; False when some handler did not return in time."""
        self.closed = True
        if not self.runner.is_started:
            return True
        for cell in list(self.cells.values()):
            cell.kill(ExitReason.SHUTDOWN)
        return self.await_ends(timeout)

    def await_ends(self, timeout: float = SHUTDOWN_TIMEOUT) -> bool:
        """Wait until no actor lives; returns whether that is so. A handler does not wait."""
        if self.runner.is_runner_thread():
            return not self.cells
        wait = waiting.get()
        if wait is not None:
            self._when_empty = Future(self.name)
            if self.cells:
                with contextlib.suppress(ResultTimeout):
                    wait(self._when_empty, timeout)
            return not self.cells
        with self._emptied:
            return self._emptied.wait_for(lambda: not self.cells, timeout)

    def close(self) -> None:
        """Stop the runner; actors have been ended before."""
        self.closed = True
        if self.runner.is_started:
            for cell in list(self.cells.values()):
                cell.kill(ExitReason.SHUTDOWN)
            self.runner.stop()
            if not self.runner.is_runner_thread():
                self.runner.stopped.wait(SHUTDOWN_TIMEOUT)
        else:
            self.runner.discard()


_NO_HANDLERS: Final = DispatchTable(object)
