"""Thespian programs on callboard's runtime.

    ActorSystem(systemBase=SystemBase(), transientUnique=True)     handed over as an object
    ActorSystem("callboard")                                       by name, once `actors` is
    imported

Plain Thespian actors keep Thespian's rules: the runtime is attached after `__init__`, a message
whose handler raised is tried a second time with a copy and then returned as `PoisonMessage`, a
parent receives `ChildActorExited` once for each child, and only `ActorExitRequest` ends an
actor. `docs/thespian.md` tells users what is the same and what is not.
"""

from callboard.actors.runtime import Runtime
from callboard.actors.thespian.system import PlainActors, SystemBase, register_by_name

__all__ = ["PlainActors", "SystemBase"]

register_by_name()
Runtime.system_base = staticmethod(lambda runtime: SystemBase(runtime=runtime))
