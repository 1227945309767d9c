"""Thespian programs on callboard's runtime.

    ActorSystem(systemBase=SystemBase(), transientUnique=True)     handed over as an object
    ActorSystem("callboard")                                       by name, once `actors` is
    imported

Plain Thespian actors keep Thespian's rules: the runtime is attached after `__init__`, a message
whose handler raised is tried a second time with a copy and then returned as `PoisonMessage`, a
parent receives `ChildActorExited` once for each child, and only `ActorExitRequest` ends an
actor. `docs/thespian.md` tells users what is the same and what is not.
"""

from actors.thespian.by_name import register_by_name
from actors.thespian.creation import PlainActors
from actors.thespian.system import SystemBase

__all__ = ["PlainActors", "SystemBase"]

register_by_name()
