"""How a system creates actors: here, on another system, under a name, or for another system."""

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
from callboard.support.dataclass import dataclass
from callboard.support.text import error_text, logged, safe_repr

log = logging.getLogger("callboard.thespian")

#: Packages whose actors other systems may not create unless their module is listed.
_LIBRARIES: Final = frozenset({"callboard", "thespian"})


@dataclass(eq=False)
class Creator:
    """Creates the actors of one system. Thread-safe."""

    #: The other systems, some of which may run what this one cannot.
    neighbors: Neighbors
    #: The loaded sources of the system.
    sources: Sources
    #: What the system can do.
    capabilities: dict[str, Any]
    #: Names of modules whose classes other systems may create, beside users' own.
    listed: Collection[str]
    #: The actors without a parent that other systems run for this one.
    abroad: set[ActorRef[Any]] = field(default_factory=set)
    #: The living holder of each global name.
    named: dict[str, ActorRef[Any]] = field(default_factory=dict)
    #: Held for each look at these: which thread creates the actor of a name, and for which name
    #: a thread waits. Constructors run without it: one that blocks holds up its own name only.
    _naming: threading.Condition = field(
        default_factory=lambda: locks.condition("names of Thespian actors", 620)
    )
    _making: dict[str, int] = field(default_factory=dict)
    _waiting: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Take names back from actors that end."""
        self.neighbors.runtime.on_end.append(self._ended)

    def name_of(self, cell: Cell) -> str | None:
        """Return the global name that an actor was created under."""
        names = (name for name, ref in list(self.named.items()) if ref.target is cell)
        return next(names, None)

    def _ended(self, cell: Cell, _: Down) -> None:
        name = self.name_of(cell) if self.named else None
        if name is not None:
            self.named.pop(name, None)

    def create(
        self, actor_class: type | str, creation: Creation, parent: Cell | None
    ) -> ActorRef[Any]:
        """Create an actor, for a parent or for the outside.

        With a parent a failure is not raised: the address is that of no actor, and the parent
        is told `ChildActorExited`.
        """
        if isinstance(parent, PlainCell):
            if parent.exiting:
                # A parent that restarts children would never end.
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
            why = error_text(error)
            log.warning("creating %s failed: %s", safe_repr(actor_class), why)
            failed = FailedChild(self.neighbors.runtime, why).ref
            parent.post(thespian.ChildActorExited(failed), None)
            return failed

    def _create_named(
        self, actor_class: type | str, creation: Creation, name: str, parent: Cell | None
    ) -> ActorRef[Any]:
        """Create the holder of a name: not a child, but its creator is told of its end."""
        me = threading.get_ident()
        with self._naming:
            while name in self._making and not self._leads_to(name, me):
                self._waiting[me] = name
                self._naming.wait()
                del self._waiting[me]
            held = self.named.get(name)
            if held is not None:
                return held
            before, self._making[name] = self._making.get(name), me
        try:
            ref = self._create(actor_class, creation, None)
            if isinstance(ref.target, Cell):  # on another system it is held there
                self.named[name] = ref
                if not ref.target.alive:
                    self.named.pop(name, None)
        finally:
            with self._naming:
                del self._making[name]
                if before is not None:  # a constructor that asks for its own name
                    self._making[name] = before
                self._naming.notify_all()
        if isinstance(parent, PlainCell):
            ref.target.monitor(parent, lambda down: parent.tell_of_end(down.ref))
        return ref

    def _leads_to(self, name: str, thread: int) -> bool:
        """Whether the maker of a name is a thread, or waits for what leads to it."""
        maker = self._making.get(name)
        while maker is not None and maker != thread:
            maker = self._making.get(self._waiting.get(maker, ""))
        return maker is not None

    def _create(
        self, actor_class: type | str, creation: Creation, parent: Cell | None
    ) -> ActorRef[Any]:
        load = None
        if creation.source_hash and isinstance(actor_class, str):
            load = partial(self.sources.load_class, creation.source_hash)
        found = find_class(actor_class, load)
        if is_compatible(found, self.capabilities, creation.requirements):
            args = () if hasattr(found, "attach") else (creation,)
            return self.neighbors.runtime.start_actor(found, args, parent=parent)
        return self._create_abroad(found, creation, parent)

    def _create_abroad(
        self, actor_class: type, creation: Creation, parent: Cell | None
    ) -> ActorRef[Any]:
        ref = None
        if self.neighbors.convention is not None:
            asking = parent.ref if parent is not None else None
            ref = self.neighbors.convention.create(actor_class, creation, asking)
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

    def ask_to_exit(self, ref: ActorRef[Any]) -> None:
        """Send an `ActorExitRequest` in the name of the system."""
        ref.target.post(thespian.ActorExitRequest(), self.neighbors.system)

    def is_offered(self, actor_class: type) -> bool:
        """Return True for a class that other systems may create actors of."""
        root = actor_class.__module__.partition(".")[0]
        return issubclass(actor_class, thespian.Actor) and (
            root not in _LIBRARIES or actor_class.__module__ in self.listed
        )

    def create_for_others(
        self, actor_class: type, requirements: Any, global_name: str | None
    ) -> ActorRef[Any] | None:
        """Create an actor for another system; None when its class does not accept this one."""
        if not is_compatible(actor_class, self.capabilities, requirements):
            return None
        return self.create(actor_class, Creation(requirements, global_name), None)


def find_class(
    specification: type | str, load: Callable[[str, str], Any] | None = None
) -> type:
    """Return an actor's class, given as such or as `package.module.Class`.

    Args:
        specification: the class or its name.
        load: returns a class of a loaded source, by module and name.

    Raises:
        InvalidActorSpecification: the name has no module, or the module has no such class.
        ImportError: there is no such module.
    """
    try:
        found = actualActorClass(specification, load)
    except AttributeError as error:
        raise thespian.InvalidActorSpecification(specification, str(error)) from error
    return found  # type: ignore[no-any-return]


def is_compatible(
    actor_class: type, capabilities: dict[str, Any], requirements: dict[str, Any] | None
) -> bool:
    """Ask the class whether its actors can run on a system; an exception means no."""
    check = getattr(actor_class, "actorSystemCapabilityCheck", None)
    if check is None:
        return True
    try:
        return bool(check(capabilities, requirements or {}))
    except BaseException as error:  # noqa: BLE001  # a class of the user
        text = "%s could not check capabilities; it counts as incompatible"
        logged(log, text, safe_repr(actor_class), error=error)
        return False
