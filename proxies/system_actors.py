"""The actors that every node has: spawn server and directory."""

import traceback
from typing import TYPE_CHECKING, Any

from actors.actor import Actor
from actors.dispatch import handler
from actors.errors import NotSpawnable, RemoteError
from actors.reference import ActorRef
from actors.signals import Down
from proxies.messages import Describe, HoldersChanged, Lookup, Spawn, WatchName
from proxies.names import DRAINING, Names, NamesChanged

if TYPE_CHECKING:
    from collections.abc import Mapping


class SpawnServer(Actor):
    """Makes actors of the offered classes for other nodes; nothing else can be made."""

    remote_methods = frozenset()

    def __init__(self, offered: "Mapping[str, type[Actor]]") -> None:
        self._offered = offered

    @handler
    def make(self, request: Spawn) -> ActorRef[Any] | None:
        """Answer with the ref of the new actor."""
        if self.node.is_draining:
            text = f"{self.node.name} is draining and spawns nothing; choose another node"
            self.promise().set_exception(NotSpawnable(text))
            return None
        actor_class = self._find(request)
        if actor_class is None:
            self._cell.runtime.counters.refused_spawns += 1
            offers = ", ".join(sorted(self._offered)) or "nothing"
            self.promise().set_exception(
                NotSpawnable(
                    f"{request.name!r} is not offered by {self.node.name}; it offers {offers}"
                )
            )
            return None
        try:
            return self._cell.runtime.spawn(actor_class, request.args, request.kwargs)
        except BaseException as error:  # noqa: BLE001  # the failure of __init__ is the asker's
            trace = "".join(traceback.format_exception(error))
            failure = RemoteError(type(error).__qualname__, str(error), trace)
            self.promise().set_exception(failure)
            return None

    def _find(self, request: Spawn) -> "type[Actor] | None":
        if not request.by_class:
            return self._offered.get(str(request.name))
        classes = (self._offered[name] for name in sorted(self._offered))
        return next((found for found in classes if found.__qualname__ == request.name), None)


class Directory(Actor):
    """Answers who is registered under a name, and tells watchers of changes."""

    remote_methods = frozenset()

    def __init__(self, names: "Names", groups: "Names", node_name: str) -> None:
        self._names = names
        self._groups = groups
        self._node_name = node_name
        #: Who watches a name, and the version of its table that each was told last.
        self._watchers: dict[tuple[Names, str], dict[ActorRef[Any], int]] = {}
        for table in (names, groups):
            table.on_change = self._note

    def _note(self, change: NamesChanged) -> None:
        if (change.table, change.name) in self._watchers:
            self._cell.post(change, None)

    @handler
    def lookup(self, question: Lookup) -> ActorRef[Any] | None:
        """Return the actor of that name, or None."""
        return None if self._names.are_withdrawn else self._names.get(str(question.name))

    @handler
    def watch(self, question: WatchName) -> None:
        """Tell the sender who has a name now, and each later change."""
        watcher = self.sender
        if watcher is None:
            return
        table, name = self._groups if question.is_group is True else self._names, question.name
        # First the entry, then the state: no change falls between them.
        watchers = self._watchers.setdefault((table, str(name)), {})
        if watcher not in watchers:
            self.monitor(watcher)
        elif watchers[watcher] == question.version:
            return
        version, refs = table.state(str(name))
        if self._is_hidden(table, watcher):
            refs = ()
        watchers[watcher] = version
        watcher.tell(HoldersChanged(version, added=refs, is_all=True))

    @handler
    def changed(self, change: NamesChanged) -> None:
        """Tell those who watch."""
        watchers = self._watchers.get((change.table, change.name), {})
        for watcher, version in watchers.items():
            if change.version <= version:
                continue  # its first answer had this change already
            watchers[watcher] = change.version
            added, removed = change.added, change.removed
            if self._is_hidden(change.table, watcher):
                added = ()
            elif change.reason == DRAINING:
                removed = ()
            watcher.tell(HoldersChanged(change.version, added, removed, change.reason))

    @handler
    def watcher_ended(self, down: Down) -> None:
        """Tell a watcher no more that ended or is out of reach."""
        for key, watchers in list(self._watchers.items()):
            watchers.pop(down.ref, None)
            if not watchers:
                del self._watchers[key]

    @staticmethod
    def _is_hidden(table: "Names", watcher: ActorRef[Any]) -> bool:
        """A node that drains shows its names to its own actors only."""
        return table.are_withdrawn and not watcher.is_local

    @handler
    def describe(self, _: Describe) -> str:
        """Return the node's name."""
        return self._node_name
