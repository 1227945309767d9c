"""The address of a child that could not be created.

`createActor` returns it at once, as it does for children that live. What its parent sends
before it has been told comes back as `PoisonMessage`; after that it is an address like that of
any actor that ended.
"""

from typing import Any

from thespian.actors import ActorSystemMessage, PoisonMessage

from callboard.actors.exit_reason import ExitReason
from callboard.actors.reference import ActorRef, Down, NoActor, Sender, Watcher
from callboard.actors.runtime import Runtime


class FailedChild(NoActor):
    """Stands where the child would be."""

    def __init__(self, runtime: Runtime, why: str) -> None:
        self._runtime = runtime
        self._why = why
        self.is_known = False
        #: The address.
        self.ref = ActorRef[Any](runtime, runtime.node_id, runtime.ended_ref().actor_id, self)

    def post(self, message: Any, sender: Sender | None) -> None:
        """Return a message to its sender, or make it a dead letter."""
        asker = sender.reference(self._runtime) if sender is not None else None
        if self.is_known or asker is None or isinstance(message, ActorSystemMessage):
            self._runtime.dead_letter(self.ref, message, sender)
        else:
            asker.target.post(PoisonMessage(message, f"Child Aborted: {self._why}"), None)

    def monitor(self, key: object, watcher: Watcher) -> None:
        """Tell at once that there is no such actor."""
        watcher(Down(self.ref, ExitReason.NOT_FOUND, self._why))
