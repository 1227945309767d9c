"""How a system creates actors: here, on another system, under a name, or for another system."""

import logging
from collections.abc import Collection
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from thespian.actors import Actor, ChildActorExited, NoCompatibleSystemForActor

from actors.cell import Cell
from actors.reference import ActorRef
from actors.thespian.cell import Creation, PlainCell
from actors.thespian.creation import find_class, is_compatible
from actors.thespian.failed import FailedChild

if TYPE_CHECKING:
    from actors.thespian.system import SystemBase

log = logging.getLogger("callboard.thespian")

_LIBRARIES: Final = frozenset({"actors", "basp", "callboard", "proxies", "thespian"})
"""Packages whose actors other systems may not create unless their module is listed."""


class Creator:
    """Creates the actors of one system. Thread-safe."""

    def __init__(self, system: "SystemBase", listed: Collection[str]) -> None:
        self._system = system
        self._runtime = system.runtime
        self._listed = frozenset(listed)
        self._abroad: set[ActorRef[Any]] = set()

    def create(
        self,
        actor_class: type | str,
        requirements: dict[str, Any] | None,
        global_name: str | None,
        source_hash: str | None,
        parent: Cell | None,
    ) -> ActorRef[Any]:
        """Create an actor, for a parent or for the outside.

        With a parent a failure is no exception: the address is that of nobody, and the parent
        is told `ChildActorExited`.
        """
        if isinstance(parent, PlainCell):
            if parent.exiting:
                return self._runtime.nobody  # a parent that restarts children would never end
            source_hash = source_hash or parent.creation.source_hash
        creation = Creation(requirements, source_hash, global_name)
        try:
            if global_name:
                return self._create_named(actor_class, creation, global_name, parent)
            return self._create(actor_class, creation, parent)
        except Exception as error:
            if parent is None:
                raise
            log.warning("creating %s failed: %s", actor_class, error)
            failed = FailedChild(self._runtime, str(error)).ref
            parent.post(ChildActorExited(failed), None)
            return failed

    def _create_named(
        self, actor_class: type | str, creation: Creation, name: str, parent: Cell | None
    ) -> ActorRef[Any]:
        """Create the holder of a name: no child, but who created it is told of its end."""
        with self._system.names.lock:
            held = self._system.names.holder_of(name)
            if held is not None:
                return held
            ref = self._create(actor_class, creation, None)
            if isinstance(ref.target, Cell):  # on another system it is held there
                self._system.names.hold(name, ref)
        if isinstance(parent, PlainCell):
            ref.target.monitor(parent, lambda down: parent.tell_of_end(down.ref))
        return ref

    def _create(
        self, actor_class: type | str, creation: Creation, parent: Cell | None
    ) -> ActorRef[Any]:
        load = None
        if creation.source_hash and isinstance(actor_class, str):
            load = partial(self._system.sources.load_class, creation.source_hash)
        found = find_class(actor_class, load)
        if is_compatible(found, self._system.capabilities, creation.requirements):
            args = () if hasattr(found, "attach") else (creation,)
            return self._runtime.spawn(found, args, parent=parent)
        return self._create_abroad(found, creation, parent)

    def _create_abroad(
        self, actor_class: type, creation: Creation, parent: Cell | None
    ) -> ActorRef[Any]:
        ref = None
        if self._system.neighbors.convention is not None:
            asking = parent.ref if parent is not None else None
            ref = self._system.neighbors.convention.create(actor_class, creation, asking)
        if ref is None:
            raise NoCompatibleSystemForActor(actor_class, "No compatible ActorSystem")
        if isinstance(parent, PlainCell):
            parent.adopt(ref)
        elif parent is not None:
            parent.monitor(("abroad", ref), lambda _: self._system.ask_to_exit(ref))
        else:
            self._abroad.add(ref)
            ref.target.monitor(self, lambda down: self._abroad.discard(down.ref))
        return ref

    def abroad(self) -> list[ActorRef[Any]]:
        """List the actors without a parent that other systems run for this one."""
        return list(self._abroad)

    def accepts(
        self, actor_class: type, capabilities: dict[str, Any], creation: Creation
    ) -> bool:
        """Return True when a class accepts a system with these capabilities."""
        return is_compatible(actor_class, capabilities, creation.requirements)

    def is_offered(self, actor_class: type) -> bool:
        """Return True for a class that other systems may create actors of."""
        root = actor_class.__module__.partition(".")[0]
        return issubclass(actor_class, Actor) and (
            root not in _LIBRARIES or actor_class.__module__ in self._listed
        )

    def create_for_others(
        self, actor_class: type, requirements: Any, global_name: str | None
    ) -> ActorRef[Any] | None:
        """Create an actor for another system; None when its class does not accept this one."""
        creation = Creation(requirements, None, global_name)
        if not is_compatible(actor_class, self._system.capabilities, requirements):
            return None
        if global_name:
            return self._create_named(actor_class, creation, global_name, None)
        return self._create(actor_class, creation, None)
