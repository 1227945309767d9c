"""Creates the actors of a system, on this or another system, with or without a name."""

import logging
import threading
from collections.abc import Callable, Collection
from dataclasses import field, replace
from functools import partial
from typing import Any, Final

from thespian import actors as thespian
from thespian.system.utilis import actualActorClass

from callboard import locks
from callboard.actors.cell import Cell
from callboard.actors.reference import ActorRef, Down
from callboard.actors.thespian.cell import Creation, FailedChild, PlainCell
from callboard.actors.thespian.neighbors import Neighbors
from callboard.actors.thespian.sources import Sources
from callboard.support.calls import Keywords
from callboard.support.dataclass import dataclass
from callboard.support.text import error_text, logged, safe_repr

_log = logging.getLogger("callboard.thespian")

#: Packages whose actors other systems may not create unless their module is listed.
_LIBRARIES: Final = frozenset({"callboard", "thespian"})


@dataclass(eq=False)
class Creator:
    """Creates the actors of one system. Thread-safe."""

    #: The other systems, which may run actors that this one cannot.
    neighbors: Neighbors
    #: The loaded sources of the system.
    sources: Sources
    #: The capabilities of the system.
    capabilities: Keywords
    #: Modules whose classes other systems may create, in addition to modules of users.
    listed: Collection[str]
    #: Actors without a parent that run on other systems for this one.
    abroad: set[ActorRef] = field(default_factory=set)
    #: The living holder of each global name.
    named: dict[str, ActorRef] = field(default_factory=dict)
    #: Guards the three tables: the holders of names, the thread that creates the holder of a
    #: name, and the name that a thread waits for. It is not held while a constructor runs, so
    #: that a constructor which blocks delays the creations under its own name only.
    _naming: threading.Condition = field(
        default_factory=lambda: locks.condition("names of Thespian actors", 620)
    )
    _making: dict[str, int] = field(default_factory=dict)
    _waiting: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Have the names of ended actors removed."""
        self.neighbors.runtime.on_end.append(self._ended)

    def name_of(self, cell: Cell) -> str | None:
        """Return the global name of an actor, or None."""
        names = (name for name, ref in list(self.named.items()) if ref.target is cell)
        return next(names, None)

    def _ended(self, cell: Cell, _: Down) -> None:
        name = self.name_of(cell) if self.named else None
        if name is not None:
            self.named.pop(name, None)

    def create(
        self, actor_class: type | str, creation: Creation, parent: Cell | None
    ) -> ActorRef:
        """Create an actor, with a parent or without.

        If there is a parent, a failure is not raised. Instead, the result is an address without
        an actor, and the parent receives `ChildActorExited`.
        """
        if isinstance(parent, PlainCell):
            if parent.exiting:
                # Otherwise a parent that recreates its children when they end would never end.
                return self.neighbors.runtime.nobody
            if not creation.source_hash:
                creation = replace(creation, source_hash=parent.creation.source_hash)
        try:
            if creation.global_name:
                return self._create_named(actor_class, creation, creation.global_name, parent)
            return self._create(actor_class, creation, parent)
        except BaseException as error:
            if parent is None:
                raise
            reason = error_text(error)
            _log.warning("creating %s failed: %s", safe_repr(actor_class), reason)
            failed = FailedChild(self.neighbors.runtime, reason).ref
            parent.post(thespian.ChildActorExited(failed), None)
            return failed

    def _create_named(
        self, actor_class: type | str, creation: Creation, name: str, parent: Cell | None
    ) -> ActorRef:
        """Return the actor with a global name, and create it if there is none."""
        me = threading.get_ident()
        with self._naming:
            while name in self._making and not self._leads_to(name, me):
                self._waiting[me] = name
                self._naming.wait()
                del self._waiting[me]
            holder = self.named.get(name)
            if holder is not None:
                return holder
            outer, self._making[name] = self._making.get(name), me
        try:
            ref = self._create(actor_class, creation, None)
            # The name of an actor on another system is registered there.
            if isinstance(ref.target, Cell):
                self.named[name] = ref
                if not ref.target.alive:
                    self.named.pop(name, None)
        finally:
            with self._naming:
                del self._making[name]
                if (
                    outer is not None
                ):  # the actor's constructor creates an actor with the same name
                    self._making[name] = outer
                self._naming.notify_all()
        if isinstance(parent, PlainCell):
            ref.target.monitor(parent, lambda down: parent.tell_of_end(down.ref))
        return ref

    def _leads_to(self, name: str, thread: int) -> bool:
        """Return whether a thread creates the holder of a name, or the creator waits for it."""
        maker = self._making.get(name)
        while maker is not None and maker != thread:
            maker = self._making.get(self._waiting.get(maker, ""))
        return maker is not None

    def _create(
        self, actor_class: type | str, creation: Creation, parent: Cell | None
    ) -> ActorRef:
        """Create an actor on this system, or on another one if its class requires that."""
        load = None
        if creation.source_hash and isinstance(actor_class, str):
            load = partial(self.sources.load_class, creation.source_hash)
        loaded_class = find_class(actor_class, load)
        if is_compatible(loaded_class, self.capabilities, creation.requirements):
            args = () if hasattr(loaded_class, "attach") else (creation,)
            return self.neighbors.runtime.start_actor(loaded_class, args, parent=parent)
        return self._create_abroad(loaded_class, creation, parent)

    def _create_abroad(
        self, actor_class: type, creation: Creation, parent: Cell | None
    ) -> ActorRef:
        """Create an actor on another system of the convention."""
        ref = None
        if self.neighbors.convention is not None:
            parent_ref = parent.ref if parent is not None else None
            ref = self.neighbors.convention.create(actor_class, creation, parent_ref)
        if ref is None:
            raise thespian.NoCompatibleSystemForActor(actor_class, "No compatible ActorSystem")
        if isinstance(parent, PlainCell):
            parent.adopt(ref)
        elif parent is not None:
            parent.monitor(("abroad", ref), lambda _: self.ask_to_exit(ref))
        else:
            self.abroad.add(ref)
            ref.target.monitor(self, lambda down: self.abroad.discard(down.ref))
        return ref

    def ask_to_exit(self, ref: ActorRef) -> None:
        """Send an `ActorExitRequest` from the system."""
        ref.target.post(thespian.ActorExitRequest(), self.neighbors.system)

    def is_offered(self, actor_class: type) -> bool:
        """Return whether other systems may create actors of a class."""
        root = actor_class.__module__.partition(".")[0]
        return issubclass(actor_class, thespian.Actor) and (
            root not in _LIBRARIES or actor_class.__module__ in self.listed
        )

    def create_for_others(
        self, actor_class: type, requirements: Any, global_name: str | None
    ) -> ActorRef | None:
        """Create an actor for another system; return None if its class refuses this one."""
        if not is_compatible(actor_class, self.capabilities, requirements):
            return None
        return self.create(actor_class, Creation(requirements, global_name), None)


def find_class(
    specification: type | str, load: Callable[[str, str], Any] | None = None
) -> type:
    """Return an actor class, given directly or as `package.module.Class`.

    Args:
        specification: the class or its name.
        load: returns a class of a loaded source: (module, name).

    Raises:
        InvalidActorSpecification: the name has no module, or the module has no such class.
        ImportError: the module does not exist.
    """
    try:
        actor_class = actualActorClass(specification, load)
    except AttributeError as error:
        raise thespian.InvalidActorSpecification(specification, str(error)) from error
    return actor_class  # type: ignore[no-any-return]


def is_compatible(
    actor_class: type, capabilities: Keywords, requirements: Keywords | None
) -> bool:
    """Return whether a class accepts a system. If its check raises, it does not accept it."""
    check = getattr(actor_class, "actorSystemCapabilityCheck", None)
    if check is None:
        return True
    try:
        return bool(check(capabilities, requirements or {}))
    except BaseException as error:  # noqa: BLE001  # a class of the user
        text = "%s could not check capabilities; it counts as incompatible"
        logged(_log, text, safe_repr(actor_class), error=error)
        return False
