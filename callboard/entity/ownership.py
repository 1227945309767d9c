"""How a node comes to own slots, gives them away, and takes those of the dead.

It carries out what `machine/table.py` says: each change is one compare-and-set of the table's
register. A slot is served when its fence was raised to the epoch in the table, and no earlier.
"""

from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, Final, Protocol, TypeVar

from callboard.actors.future import Future
from callboard.actors.runtime import Runtime
from callboard.entity.host import EntityHost
from callboard.entity.machine.table import Table
from callboard.entity.state.interface import EntityState
from callboard.lease.errors import OutcomeUnknown, StateUnavailable, WrongState
from callboard.lease.register import Leases, LeaseValue

T = TypeVar("T")

#: Seconds between looks whether members are gone.
LOOK: Final = 0.1

#: Looks between reads of the table: who changes it tells, and may be lost before it does.
LOOKS_A_READ: Final = 10

#: Looks between signs of life, and seconds without one after which a member is out. Fences
#: keep one that only slept from writing, or answering, anything.
LOOKS_A_SIGN: Final = 5
SILENCE: Final = 2.1
#: Seconds between own reads beyond which the silence of others proves nothing.
_LONGEST_GAP: Final = 1.0

#: Slots that are given away at once.
MOVED_AT_ONCE: Final = 32

#: Seconds that a slot may take to come to rest before it moves; else it stays for now.
STOP_TIMEOUT: Final = 5.0

#: Times that a change is tried against those of others.
_TRIES: Final = 100


class Calls(Protocol):
    """Calls methods of something that blocks, beside the node's thread."""

    def submit(self, done: Callable[[Any], object], method: Any, /, *args: Any) -> None:
        """Call a method; `done` gets what comes of it, on the node's thread."""

    def close(self) -> None:
        """Finish what was handed over, and close."""


async def called(calls: Any, method: Callable[..., T], *args: Any) -> T:
    """Return what a call returns, or raise what it raises."""
    future: Future[T] = Future()

    def done(outcome: Any) -> None:
        if isinstance(outcome, BaseException):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)

    calls.submit(done, method, *args)
    return await future


class Ownership:
    """One node's part in the table of a type."""

    def __init__(
        self,
        host: EntityHost,
        leases: Any,
        runtime: Runtime,
        adopted: Callable[[Table], object],
        start: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        """Make one that is no member yet.

        Args:
            host: what serves the slots.
            leases: calls of the register.
            runtime: of the node.
            adopted: told of each newer table; it tells other nodes.
            start: runs a coroutine on the node's loop.
        """
        self._host, self._leases, self._runtime = host, leases, runtime
        self._adopted, self._start = adopted, start
        self._register = f"entities/{host.type.name}"
        self._writes = 0
        self._looks = 0
        self.table = Table()
        self.is_closed = False
        self._is_tending = self._is_giving = False
        self._state_id = ""
        self._sign_version = 0
        self._last_signs = 0.0
        #: The last sign of life of each member, and when it was new here.
        self._signs: dict[str, tuple[int, float]] = {}

    async def join(self, state_id: str) -> None:
        """Become a member, and serve what falls to this node.

        Raises:
            WrongState: the members have another state.
            StorageError: the register cannot be used.
        """
        self._state_id = state_id
        await self._give_sign()
        await self._remove_dead()
        table = await self._read()
        if table.members and table.state != state_id:
            others = ", ".join(node[:12] for node in table.members.values())
            msg = (
                f"{self._host.type.name} is hosted by {others} with another state "
                f"({table.state[:8]}, not {state_id[:8]}); use one for all"
            )
            raise WrongState(msg)
        node = self._runtime.node_id.hex()
        writer = self._host.writer
        await self._change(lambda found: found.with_member(writer, node, state_id))
        await self.serve()

    async def leave(self) -> None:
        """Be no member any more: what this node had goes to the others."""
        self.is_closed = True
        writer = self._host.writer
        await self._change(lambda found: found.without([writer]))

    async def tend(self) -> None:
        """Take from the dead, look at the table, give away what is wished to others."""
        if self._is_tending or self.is_closed:
            return
        self._is_tending = True
        try:
            self._looks += 1
            silent = await self._look_for_signs() if self._looks % LOOKS_A_SIGN == 0 else []
            await self._remove_dead(silent)
            if self._looks % LOOKS_A_READ == 0:
                await self._read()
            if self.table.version and self._host.writer not in self.table.members:
                await self.join(self._state_id)  # it slept, and was taken for dead
            await self.serve()
            if not self._is_giving and self.table.unwished(self._host.writer):
                self._is_giving = True
                self._start(self._give_away())  # a handler may take long to end
        except (StateUnavailable, OutcomeUnknown) as error:
            key = ("entities", self._host.type.name)
            self._runtime.warn_once(key, f"the leases of {key[1]} are away: {error}")
        finally:
            self._is_tending = False

    def take(self, table: Table) -> None:
        """Take a table that another member, or the register, has."""
        if table.version > self.table.version:
            self.table = table
            self._host.keep_only(table.owned(self._host.writer))
            self._adopted(table)

    async def serve(self) -> None:
        """Raise the fences of slots that fell to this node, then serve them."""
        host = self._host
        while True:
            owned = self.table.owned(host.writer)
            fresh = {
                slot: epoch for slot, epoch in owned.items() if host.epochs.get(slot) != epoch
            }
            if not fresh:
                return
            if host.state is not None:
                held = await called(host.state, EntityState.claim, host.type.name, fresh)
                if held:  # another table was in force before: go beyond it
                    beyond = {slot: fence.epoch + 1 for slot, fence in held.items()}
                    await self._change(partial(_raised, host.writer, beyond))
                    fresh = {slot: epoch for slot, epoch in fresh.items() if slot not in held}
            owned = self.table.owned(host.writer)
            host.serve({s: epoch for s, epoch in fresh.items() if owned.get(s) == epoch})
            self._adopted(self.table)

    async def _give_sign(self) -> None:
        """Show the other members that this one lives."""
        self._writes += 1
        name = f"lives/{self._host.type.name}/{self._host.writer}"
        value = LeaseValue(self._host.writer, self._writes)
        write = called(self._leases, Leases.write, name, value, self._sign_version)
        if await write:
            self._sign_version += 1
        else:
            _, self._sign_version = await called(self._leases, Leases.read, name)

    async def _look_for_signs(self) -> list[str]:
        """Give a sign of life, and return who gave none for long."""
        await self._give_sign()
        now = self._runtime.now()
        gap, self._last_signs = now - self._last_signs, now
        if gap > _LONGEST_GAP:  # who slept, or had no database, has seen nobody's silence
            self._signs.clear()
        silent = []
        for writer in self.table.members:
            if writer != self._host.writer:
                name = f"lives/{self._host.type.name}/{writer}"
                sign, _ = await called(self._leases, Leases.read, name)
                number = 0 if sign is None else sign.number
                seen, since = self._signs.get(writer, (-1, now))
                if number != seen:
                    self._signs[writer] = (number, now)
                elif now - since > SILENCE:
                    silent.append(writer)
        return silent

    async def _remove_dead(self, silent: Sequence[str] = ()) -> None:
        """Take the slots of members that are gone for certain."""
        others = [each for each in self.table.members if each != self._host.writer]
        if not self.table.version:
            table = await self._read()
            others = [each for each in table.members if each != self._host.writer]
        gone = [
            each
            for each in others
            if each in silent or await called(self._leases, Leases.is_gone, each)
        ]
        if gone:
            await self._change(lambda found: found.without(gone))

    async def _give_away(self) -> None:
        """Move slots that are wished to other members: stop, commit, hand over."""
        host = self._host
        unwished = self.table.unwished(host.writer)
        slots = [slot for slot in unwished if slot in host.epochs][:MOVED_AT_ONCE]
        if not slots:
            self._is_giving = False
            return
        emptied: Future[None] = Future()
        host.stop_slots(slots, lambda: emptied.set_result(None))
        try:
            late = StateUnavailable("a handler runs for long")
            await self._runtime.in_time(emptied, STOP_TIMEOUT, late)
            await self._change(lambda found: found.moved(slots))
        except (StateUnavailable, OutcomeUnknown):
            pass  # it is tried again
        finally:
            host.slots_moved(slots)
            self._is_giving = False

    async def _read(self) -> Table:
        """Read the table from its register."""
        value, version = await called(self._leases, Leases.read, self._register)
        table = Table.read("" if value is None else value.text, version)
        self.take(table)
        return table

    async def _change(self, make: Callable[[Table], Table]) -> None:
        """Change the table; tried again when others were faster."""
        for _ in range(_TRIES):
            before = self.table if self.table.version else await self._read()
            after = make(before)
            if after == before:
                return
            self._writes += 1
            value = LeaseValue(self._host.writer, self._writes, after.text())
            try:
                is_written = await called(
                    self._leases, Leases.write, self._register, value, before.version
                )
            except OutcomeUnknown:
                is_written = False  # it is read: if it was written, there is nothing to change
            if is_written:
                self.take(Table.read(value.text, before.version + 1))
                return
            await self._read()
        msg = f"the table of {self._host.type.name} changed {_TRIES} times meanwhile"
        raise StateUnavailable(msg)


def _raised(writer: str, epochs: Mapping[int, int], found: Table) -> Table:
    """Return a table with higher epochs of a member's slots."""
    return found.raised(writer, epochs)
