"""Thespian programs on callboard's runtime.

    ActorSystem(systemBase=SystemBase(), transientUnique=True)     passed as an object
    ActorSystem("callboard")                                       by name, after `actors` was
    imported

Plain Thespian actors keep Thespian's rules: the runtime is attached after `__init__`. A message
whose handler raised is retried once with a copy, and then returned as `PoisonMessage`. A parent
receives one `ChildActorExited` for each child, and only `ActorExitRequest` ends an actor.
`docs/thespian.md` lists the similarities and differences for users.
"""

from callboard.actors.runtime import Runtime
from callboard.actors.thespian.system import PlainActors, SystemBase, register_by_name

__all__ = ["PlainActors", "SystemBase"]

register_by_name()
Runtime.system_base = staticmethod(lambda runtime: SystemBase(runtime=runtime))
