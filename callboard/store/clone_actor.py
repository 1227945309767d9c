"""The actor that runs a clone on a node."""

from uuid import UUID

from actors.dispatch import handler
from callboard.endpoint.topic import clone_topic
from callboard.store.clone import Clone
from callboard.store.effect import Effect, Persist
from callboard.store.entity_id import EntityId
from callboard.store.options import CloneOptions
from callboard.store.port import Port, Settled
from callboard.store.store_actor import StoreActor

__all__ = ["CloneActor"]


class CloneActor(StoreActor):
    """Runs a clone."""

    machine: Clone

    def __init__(self, port: Port, options: CloneOptions) -> None:
        hub = port.hub
        endpoint = UUID(bytes=hub.endpoint_id)

        def make_entity() -> EntityId:
            return EntityId(endpoint, hub.make_object())

        machine = Clone(make_entity(), make_entity, self._cell.runner.now(), options)
        self._settled_later: list[Settled] = []
        super().__init__(port, machine, clone_topic(port.name))

    @handler
    def settled(self, wanted: Settled) -> None:
        """Say that there is a copy to read, and that what was written is on its way."""
        self.drain_all()
        if self.machine.was_connected:
            wanted.future.set_result(None)
        else:
            self._settled_later.append(wanted)

    def _look_around(self) -> None:
        super()._look_around()
        if self._settled_later and self.machine.was_connected:
            later, self._settled_later = self._settled_later, []
            for wanted in later:
                wanted.future.set_result(None)

    def _greet(self) -> list[Effect]:
        return self.machine.endpoint_found(self._now())

    def _lose(self, endpoint: bytes) -> list[Effect]:
        return self.machine.endpoint_lost(endpoint, self._now())

    def _persist(self, changes: Persist, number: int) -> None:
        """Clones keep nothing on disk."""
        raise AssertionError(changes)

    def _on_the_way(self) -> int:
        # Without a master nobody waits: writes are kept, and refused beyond the limit.
        return self.machine.unacknowledged if self.machine.is_connected else 0
