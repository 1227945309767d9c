"""Watching a name or a group on all nodes in reach.

A watcher asks the directory of each node for the holders of one name. A directory answers with
all of them and tells each later change, until the watcher ends or is out of reach. What a
lost node held is gone with it. Every few seconds the watcher asks again and says what it has
seen: a directory that lost sight of it for a moment, and it not of the directory, starts over.
"""

from collections.abc import Callable
from typing import Any, Final

from callboard.actors.dispatch import handler
from callboard.actors.reference import ActorRef
from callboard.actors.runtime import Runtime
from callboard.actors.system_actor import SystemActor
from callboard.basp.header import DIRECTORY
from callboard.proxies.events import NodeDown, NodeUp
from callboard.proxies.messages import HoldersChanged, WatchName
from callboard.support.dataclass import dataclass

#: Seconds after which a watcher tells every directory again that it is there.
REFRESH: Final = 5.0


@dataclass(frozen=True, slots=True)
class NameAdded:
    """An actor in reach has the name, or is in the group."""

    name: str
    ref: ActorRef[Any]


@dataclass(frozen=True, slots=True)
class NameRemoved:
    """An actor has the name no more.

    `reason` is the exit reason of an actor that ended, `unregistered`, `draining`, or
    `unreachable` when the node that registered it was lost.
    """

    name: str
    ref: ActorRef[Any]
    reason: str


NameChange = NameAdded | NameRemoved


@dataclass(frozen=True, slots=True)
class _Refresh:
    """To a watcher itself: ask all directories."""


class NameWatcher(SystemActor):
    """Tells `told` who has a name, from now on: those that have it already first."""

    def __init__(
        self, name: str, *, is_group: bool, told: Callable[[NameChange], object]
    ) -> None:
        """Begin to watch."""
        self._name = name
        self._is_group = is_group
        self._told = told
        #: For each directory, who it says holds the name, and the version of that.
        self._holders: dict[bytes, dict[ActorRef[Any], None]] = {}
        self._versions: dict[bytes, int] = {}
        self.post_self(_Refresh())

    @handler
    def refresh(self, _: _Refresh) -> None:
        """Ask every directory in reach."""
        self._ask(self.me.node_id)
        for node in self.node.overlay.nodes():
            self._ask(node)
        self.after(REFRESH, _Refresh())

    @handler
    def node_found(self, event: NodeUp) -> None:
        """Ask one more directory."""
        self._versions.pop(event.node_id, None)
        self._ask(event.node_id)

    @handler
    def node_lost(self, event: NodeDown) -> None:
        """Forget what a directory said that is gone."""
        self._versions.pop(event.node_id, None)
        for ref in list(self._holders.get(event.node_id, ())):
            self._remove(event.node_id, ref, "unreachable")

    @handler
    def changed(self, change: HoldersChanged) -> None:
        """Take what a directory says."""
        sender = self.sender
        if sender is None or sender.actor_id != DIRECTORY or not change.is_sound:
            return
        node = sender.node_id
        if self.node.overlay.rights(node) is not None:
            return
        self._versions[node] = change.version
        if change.is_all:
            for ref in [ref for ref in self._holders.get(node, ()) if ref not in change.added]:
                self._remove(node, ref, change.reason or "unregistered")
        for ref in change.removed:
            self._remove(node, ref, change.reason)
        for ref in change.added:
            self._add(node, ref)

    def _ask(self, node: bytes) -> None:
        """Ask the directory of a node, and say what is known of it already.

        Not that of a leaf: nobody is led to it by a name that it gives itself.
        """
        if self.node.overlay.rights(node) is not None:
            return
        directory = self.runtime.ref_of(node, DIRECTORY)
        directory.tell(WatchName(self._name, self._is_group, self._versions.get(node, -1)))

    def _add(self, node: bytes, ref: ActorRef[Any]) -> None:
        """Note a holder, and report one that no directory named before."""
        is_known = self._is_held(ref)
        self._holders.setdefault(node, {})[ref] = None
        if not is_known:
            self._told(NameAdded(self._name, ref))

    def _remove(self, node: bytes, ref: ActorRef[Any], reason: str) -> None:
        """Forget a holder, and report it when no directory names it any more."""
        held = self._holders.get(node, {})
        if ref in held:
            del held[ref]
            if not self._is_held(ref):
                self._told(NameRemoved(self._name, ref, reason))

    def _is_held(self, ref: ActorRef[Any]) -> bool:
        """Return whether some directory names a holder."""
        return any(ref in held for held in self._holders.values())


def watch_name(
    runtime: Runtime, name: str, *, is_group: bool, told: Callable[[NameChange], object]
) -> ActorRef[NameWatcher]:
    """Spawn a watcher; `told` is called on the runner, and has to be quick.

    The watcher hears of nodes that come and go until it ends.
    """

    def pass_on(event: object) -> None:
        if isinstance(event, NodeUp | NodeDown):
            watcher.target.post(event, None)

    watcher = runtime.start_actor(NameWatcher, (name,), {"is_group": is_group, "told": told})
    stop = runtime.listen(pass_on)
    watcher.target.monitor(stop, lambda _: stop())
    return watcher
