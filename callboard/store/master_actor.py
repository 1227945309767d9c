"""The actor that runs a master on a node."""

import logging
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import UUID

from actors.dispatch import handler
from callboard.endpoint.topic import master_topic
from callboard.store.backend import Contents, StoreBackend
from callboard.store.effect import Effect, Persist
from callboard.store.entity_id import EntityId
from callboard.store.errors import BackendFailure, MasterExists
from callboard.store.master import Master
from callboard.store.options import StoreOptions
from callboard.store.port import Port
from callboard.store.store_actor import StoreActor

__all__ = ["MasterActor"]

log = logging.getLogger("callboard.store")


@dataclass(frozen=True, slots=True)
class Written:
    """A write is durable, or failed."""

    number: int
    rows: int
    failure: BackendFailure | None


class Expiry:
    """The time of a key is over."""


class MasterActor(StoreActor):
    """Runs a master."""

    machine: Master

    def __init__(
        self, port: Port, backend: StoreBackend, contents: Contents, options: StoreOptions
    ) -> None:
        hub = port.hub
        entity = EntityId(UUID(bytes=hub.endpoint_id), hub.make_object())
        self._backend = backend
        self._rows_under_way = 0
        self._timer: Any = None
        self._timer_at = 0.0
        machine = Master(
            entity,
            options,
            rows=contents.rows,
            writers=contents.writers,
            is_durable=backend.is_durable,
        )
        super().__init__(port, machine, master_topic(port.name))
        self._arm_timer()

    @handler
    def written(self, written: Written) -> None:
        """A write is durable: go on with what waited for it."""
        self._rows_under_way -= written.rows
        if written.failure is not None:
            log.error("the master of store %r ends: %s", self.port.name, written.failure)
            self._held.clear()
            self.stop_store(written.failure)
            return
        self.release(written.number)

    @handler
    def expire(self, _: Expiry) -> None:
        """Remove keys whose time is over."""
        self._timer = None
        self._look_for_watchers()
        self._step(self.machine.expire(self._now()))
        self._arm_timer()

    def _step(self, effects: list[Effect]) -> None:
        super()._step(effects)
        if self.machine.rival is not None:
            self._yield_to_rival()

    def _look_around(self) -> None:
        super()._look_around()
        self._arm_timer()

    def _arm_timer(self) -> None:
        """Have one timer, for the key that expires first."""
        due = self.machine.next_expiry
        if due is None or (self._timer is not None and self._timer_at <= due):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = due
        self._timer = self.after(max(due - self._now(), 0.0), Expiry())

    def _yield_to_rival(self) -> None:
        """Of two masters that meet after a partition, the smaller name stays."""
        rival, self.machine.rival = self.machine.rival, None
        if rival is None or self.machine.entity < rival:
            return
        msg = (
            f"another master of the store {self.port.name!r} was made at {rival} while it was "
            "out of reach; this one ends, what it holds is still in its backend"
        )
        log.error(msg)
        self._step(self.machine.leave(self._now()))
        self.stop_store(MasterExists(msg))

    def _greet(self) -> list[Effect]:
        return self.machine.hail(self._now())

    def _lose(self, endpoint: bytes) -> list[Effect]:
        return []

    def _persist(self, changes: Persist, number: int) -> None:
        rows = len(changes.rows)
        self._rows_under_way += rows
        self._backend.write(changes, partial(self._done, number, rows))

    def _done(self, number: int, rows: int, failure: BackendFailure | None) -> None:
        self._cell.post(Written(number, rows, failure), None)

    def _on_the_way(self) -> int:
        return max(self.machine.output.buffered, self._rows_under_way)
