"""Changes of a running gateway: all of one, or nothing."""

import logging
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from callboard.gateway.configuration import Configuration, read_configuration, read_file
from callboard.gateway.errors import ConfigurationError, GatewayError
from callboard.gateway.events import GatewayEvent
from callboard.gateway.handle import ModuleHandle
from callboard.gateway.links import ANY
from callboard.gateway.roster import Roster
from proxies.node import Node

__all__ = ["Changes"]

log = logging.getLogger("callboard.gateway")


class Changes(Roster):
    """The part of a gateway that takes over configurations.

    What is new is created first: that may fail, and then is undone. Then names and links change
    over in one step, which cannot. Then what is old is removed and what is new is started.
    """

    def __init__(self, node: Node | None, name: str) -> None:
        super().__init__(node, name)
        self._updating = threading.RLock()

    def update(self, configuration: Mapping[str, Any] | Path | str) -> None:
        """Add modules, links or both; if anything fails, all is as it was.

        Args:
            configuration: of the form of a file, or the path of one.

        Raises:
            ConfigurationError: it cannot be used, or names a module that is there already.
            ModuleFailed: a module could not be created.
        """
        self._change(configuration, is_whole=False)

    def reload(self, configuration: Mapping[str, Any] | Path | str) -> None:
        """Make the gateway what a configuration says; if anything fails, all is as it was.

        Modules whose entries are the same run on. Those that came from a configuration and are
        not in this one are removed; those that were added otherwise stay, with their links.

        Raises:
            ConfigurationError: it cannot be used.
            ModuleFailed: a module could not be created.
        """
        self._change(configuration, is_whole=True)

    def _change(self, given: Mapping[str, Any] | Path | str, *, is_whole: bool) -> None:
        source, folder = "configuration", Path.cwd()
        values = given
        if not isinstance(given, Mapping):
            source, folder, values = str(given), Path(given).parent, read_file(given)
        with self._updating:
            known = self._all()
            if is_whole:
                known = [handle for handle in known if handle.name not in self._specs]
            names = frozenset(handle.name for handle in known)
            assert isinstance(values, Mapping)
            found = read_configuration(values, source=source, folder=folder, known=names)
            self._check_links(found, source, is_whole=is_whole)
            if self._apply(found, is_whole=is_whole):
                self._tell("module_list_changed")

    def _check_links(self, found: Configuration, source: str, *, is_whole: bool) -> None:
        there = {} if is_whole else self._links
        lines = [
            f"{source}: links.{index} = {' -> '.join(link)!r}: this link is there already"
            for index, link in enumerate(found.links)
            if link in there
        ]
        if lines:
            raise ConfigurationError(lines)

    def _apply(self, found: Configuration, *, is_whole: bool) -> bool:
        """Create what is new, then change over at once, then remove what is old."""
        with self._updating:
            wanted = [s for s in found.modules.values() if self._specs.get(s.name) != s]
            made: dict[str, ModuleHandle] = {}
            try:
                for spec in wanted:
                    made[spec.name] = self._create(
                        spec.name, spec.loaded, spec.args, spec.options
                    )
            except BaseException:
                for handle in reversed(made.values()):
                    self.broker.remove(handle)
                raise
            leaving = self._change_over(found, made, is_whole=is_whole)
            for handle in reversed(leaving):
                self.broker.remove(handle)
            if self._is_started:
                for handle in made.values():
                    self._start(handle)
            return bool(made or leaving)

    def _change_over(
        self, found: Configuration, made: dict[str, ModuleHandle], *, is_whole: bool
    ) -> list[ModuleHandle]:
        """Put the new modules and links in the place of the old ones; returns who leaves."""
        with self._lock:
            gone = set(self._specs) - set(found.modules) if is_whole else set()
            old = {*gone, *(made.keys() & self._handles.keys())}
            leaving = [self._handles[name] for name in self._handles if name in old]
            kept = {
                link: None
                for link in self._links
                if not is_whole or not set(link) & self._specs.keys()
            }
            self._handles = {n: h for n, h in self._handles.items() if n not in old} | made
            self._links = kept | dict.fromkeys(found.links)
            if is_whole:
                self._specs = dict(found.modules)
                self._dead_letters = found.dead_letters
            else:
                self._specs.update(found.modules)
                self._dead_letters = found.dead_letters or self._dead_letters
            self._links = {
                (source, sink): None
                for source, sink in self._links
                if sink in self._handles and (source == ANY or source in self._handles)
            }
            self.broker.rewire([self._ends_of(*link) for link in self._links], leaving)
            return leaving

    def _file_changed(self, path: Path) -> None:
        try:
            self.reload(path)
        except GatewayError as error:
            log.error("%s was not taken over: %s", path, error)  # noqa: TRY400  # no bug of ours
            self._events.emit(GatewayEvent("update_failed", self.modules(), detail=str(error)))
