"""The address of a child that could not be created.

`createActor` returns it at once, as it does for children that live. What its parent sends
before it has been told comes back as `PoisonMessage`; after that it is an address like that of
any actor that ended.
"""

from typing import TYPE_CHECKING, Any

from thespian.actors import ActorSystemMessage, PoisonMessage

from actors.answers import Sender
from actors.exit_reason import ExitReason
from actors.monitors import Watcher
from actors.reference import ActorRef
from actors.signals import Down

if TYPE_CHECKING:
    from actors.runtime import Runtime


class FailedChild:
    """Stands where the child would be."""

    __slots__ = ("_ref", "_runtime", "_why", "is_known")

    def __init__(self, runtime: "Runtime", why: str) -> None:
        self._runtime = runtime
        self._why = why
        self.is_known = False
        self._ref = ActorRef[Any](runtime, runtime.node_id, runtime.ended_ref().actor_id, self)

    @property
    def ref(self) -> ActorRef[Any]:
        """The address."""
        return self._ref

    def post(self, message: Any, sender: Sender | None) -> None:
        """Return a message to its sender, or make it a dead letter."""
        asker = sender.reference(self._runtime) if sender is not None else None
        if self.is_known or asker is None or isinstance(message, ActorSystemMessage):
            self._runtime.dead_letter(self._ref, message, sender)
        else:
            asker.target.post(PoisonMessage(message, f"Child Aborted: {self._why}"), None)

    def post_urgent(self, message: Any, sender: Sender | None) -> None:
        """Answer as `post` does."""
        self.post(message, sender)

    def stop(self) -> None:
        """It never lived."""

    def kill(self) -> None:
        """It never lived."""

    def monitor(self, key: object, watcher: Watcher) -> None:
        """Tell at once that there is no such actor."""
        watcher(Down(self._ref, ExitReason.NOT_FOUND, self._why))

    def demonitor(self, key: object) -> None:
        """Nothing is kept."""

    def link(self, other: ActorRef[Any]) -> None:
        """Nothing to link with."""

    def unlink(self, other: ActorRef[Any]) -> None:
        """Nothing to unlink."""
