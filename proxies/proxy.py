"""A proxy: a remote actor as a local one.

It takes what a local cell takes (messages, stop, monitors, links) and hands it to the
broker. It remembers that its actor ended, so that later asks fail at once.
"""

import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from actors.envelope import Envelope
from actors.errors import ActorDown, NodeUnreachable
from actors.exit_reason import ExitReason
from actors.reference import ActorRef
from actors.signals import Down
from proxies.holding import Holding
from proxies.messages import LinkActors, StopActor

if TYPE_CHECKING:
    from actors.answers import Sender
    from actors.monitors import Watcher
    from proxies.address import Endpoint
    from proxies.broker import Broker

_LIFE = threading.Lock()  # guards the tables of watchers; held for a few operations


class Proxy(Holding):
    """The stand-in for one actor of another node."""

    __slots__ = (
        "_broker",
        "_outgoing",
        "endpoint",
        "node",
        "number",
        "waiting",
    )

    def __init__(self, broker: "Broker", node: bytes, number: int, sightings: int) -> None:
        super().__init__(sightings)
        self._broker = broker
        self._outgoing = broker.outgoing
        self.node = node
        self.number = number
        #: Where the node listens, if the ref's text said so: used when no path leads there.
        self.endpoint: Endpoint | None = None
        #: Messages that wait for a dial that is under way.
        self.waiting: list[tuple[Any, Sender | None, bytes]] | None = None

    # --- messages ---

    def post(self, message: Any, sender: "Sender | None") -> None:
        """Send a message to the actor; an ask to one that is known dead fails at once."""
        if self.down is None:
            self._outgoing.dispatch(self, message, sender)
        else:
            self.refuse(message, sender, self._gone())

    def post_at_once(self, message: Any, sender: "Sender | None") -> None:
        """Send a message without waiting for the end of a turn, from a thread outside."""
        if self.down is None:
            self._outgoing.dispatch(self, message, sender, at_once=True)
        else:
            self.refuse(message, sender, self._gone())

    def post_urgent(self, message: Any, sender: "Sender | None") -> None:
        """Send a message that goes before those without priority at the actor."""
        if isinstance(message, Envelope):
            self.post(replace(message, is_urgent=True), sender)
        else:
            self.post(Envelope(message, is_urgent=True), sender)

    def refuse(self, message: Any, sender: "Sender | None", error: Exception) -> None:
        """Fail an ask, or count a tell that leads nowhere."""
        if sender is not None and sender.expects:
            sender.set_exception(error)
        self._broker.runtime.dead_letter(self._ref(), message, sender)

    def stop(self) -> None:
        """End the actor behind earlier messages."""
        self._command(StopActor(self.number))

    def kill(self) -> None:
        """End the actor before its next message."""
        self._command(StopActor(self.number, kill=True))

    def _command(self, command: object) -> None:
        if self.down is None:
            self._broker.command(self, command)

    # --- monitors and links ---

    def monitor(self, key: object, watcher: "Watcher") -> None:
        """Call `watcher` once when the actor ends or its node is lost; at once if it has."""
        with _LIFE:
            ending = self.watch(key, watcher)
        if ending is not None:
            watcher(Down(self._ref(), *ending))
        else:
            self._broker.ensure_watched(self)

    def demonitor(self, key: object) -> None:
        """Forget a watcher."""
        with _LIFE:
            self.watchers.pop(key, None)

    def link(self, other: ActorRef[Any]) -> None:
        """Let the remote actor be told when `other` ends."""
        self._command(LinkActors(self.number, other))

    def unlink(self, other: ActorRef[Any]) -> None:
        """Undo `link`."""
        self._command(LinkActors(self.number, other, undo=True))

    # --- what the broker tells ---

    def actor_ended(self, reason: ExitReason, detail: str) -> None:
        """Tell everybody who watches the actor that it ended, once."""
        with _LIFE:
            watchers = self.ended(reason, detail)
        self._tell(watchers, reason, detail)

    def out_of_reach(self, detail: str) -> None:
        """No path leads to the node any more; the actor may live on and be reached later."""
        with _LIFE:
            watchers = self.unreachable()
        self._tell(watchers, ExitReason.UNREACHABLE, detail)

    def _tell(self, watchers: "list[Watcher]", reason: ExitReason, detail: str) -> None:
        if watchers:
            down = Down(self._ref(), reason, detail)
            for watcher in watchers:
                watcher(down)

    def _gone(self) -> ActorDown:
        assert self.down is not None
        reason, detail = self.down
        return ActorDown(f"{self._ref()} ended ({reason})", reason, detail)

    def no_path(self) -> NodeUnreachable:
        """Return the error of a message that has no way to go."""
        return NodeUnreachable(
            f"no path leads to node {self.node.hex()}; connect to it or a neighbour"
        )

    def _ref(self) -> ActorRef[Any]:
        return self._broker.runtime.ref_to(self.node, self.number)
