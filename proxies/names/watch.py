"""Watches a name or a group on all nodes in reach.

A watcher asks the directory of each node for the holders of one name. The directory answers
with all of them, then reports each change until the watcher ends or is out of reach. The
holders reported by a lost node are removed. Every few seconds the watcher asks again with the
version it has. So a directory that lost the watcher for a moment starts over, even if the
watcher did not notice a loss.
"""

from collections.abc import Callable
from typing import Final

from callboard.actors.dispatch import handler
from callboard.actors.reference import ActorRef
from callboard.actors.runtime import Runtime
from callboard.actors.system_actor import SystemActor
from callboard.actors.values import Event
from callboard.basp.header import DIRECTORY
from callboard.proxies.events import NodeDown, NodeUp
from callboard.proxies.messages import HoldersChanged, WatchName
from callboard.support.dataclass import dataclass

#: Seconds between two requests of a watcher to each directory.
REFRESH: Final = 5.0


@dataclass(frozen=True, slots=True)
class NameAdded:
    """An actor in reach has the name, or is in the group."""

    name: str
    ref: ActorRef


@dataclass(frozen=True, slots=True)
class NameRemoved:
    """An actor no longer has the name.

    `reason` is the exit reason of an actor that ended, `unregistered`, `draining`, or
    `unreachable` if the node that registered it was lost.
    """

    name: str
    ref: ActorRef
    reason: str


NameChange = NameAdded | NameRemoved


@dataclass(frozen=True, slots=True)
class _Refresh:
    """Message of a watcher to itself: ask all directories."""


class NameWatcher(SystemActor):
    """Reports the holders of a name, the current ones first, then each change."""

    def __init__(
        self, name: str, *, is_group: bool, on_change: Callable[[NameChange], object]
    ) -> None:
        """Start watching."""
        self._name = name
        self._is_group = is_group
        self._on_change = on_change
        #: The holders that each directory reports, and the version of its table.
        self._holders: dict[bytes, dict[ActorRef, None]] = {}
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
        """Ask the directory of a node that became reachable."""
        self._versions.pop(event.node_id, None)
        self._ask(event.node_id)

    @handler
    def node_lost(self, event: NodeDown) -> None:
        """Remove the holders that a lost directory reported."""
        self._versions.pop(event.node_id, None)
        for ref in list(self._holders.get(event.node_id, ())):
            self._remove(event.node_id, ref, "unreachable")

    @handler
    def changed(self, change: HoldersChanged) -> None:
        """Apply a report of a directory."""
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
        """Ask the directory of a node, with the version of its last report.

        Leaves are not asked. Otherwise a leaf could register a name to receive other nodes'
        messages.
        """
        if self.node.overlay.rights(node) is not None:
            return
        directory = self.runtime.ref_of(node, DIRECTORY)
        directory.tell(WatchName(self._name, self._is_group, self._versions.get(node, -1)))

    def _add(self, node: bytes, ref: ActorRef) -> None:
        """Record a holder, and report one that no directory named before."""
        is_known = self._is_held(ref)
        self._holders.setdefault(node, {})[ref] = None
        if not is_known:
            self._on_change(NameAdded(self._name, ref))

    def _remove(self, node: bytes, ref: ActorRef, reason: str) -> None:
        """Remove a holder, and report it if no other directory names it."""
        holders = self._holders.get(node, {})
        if ref in holders:
            del holders[ref]
            if not self._is_held(ref):
                self._on_change(NameRemoved(self._name, ref, reason))

    def _is_held(self, ref: ActorRef) -> bool:
        """Return whether some directory names a holder."""
        return any(ref in holders for holders in self._holders.values())


def watch_name(
    runtime: Runtime, name: str, *, is_group: bool, on_change: Callable[[NameChange], object]
) -> ActorRef[NameWatcher]:
    """Spawn a watcher; `on_change` is called on the runner, and must be quick.

    The watcher receives events about nodes until it ends.
    """

    def pass_on(event: Event) -> None:
        if isinstance(event, NodeUp | NodeDown):
            watcher.target.post(event, None)

    watcher = runtime.start_actor(
        NameWatcher, (name,), {"is_group": is_group, "on_change": on_change}
    )
    stop = runtime.listen(pass_on)
    watcher.target.monitor(stop, lambda _: stop())
    return watcher
