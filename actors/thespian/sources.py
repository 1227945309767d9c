"""Loaded sources: zip files with actors that a registered authority has accepted.

The hash of a source is the MD5 of the data given to `load`. This is Thespian's rule; the hash
identifies the source, and does not protect it. The authority receives the data, and answers
with the zip file or a refusal. Until then the source is pending, and the creation of its actors
waits for the answer.

Modules for zip files and for loading are imported with the first source.
"""

import io
import logging
from pathlib import Path
from typing import Any, BinaryIO, Final

from thespian import actors as thespian

from callboard import locks
from callboard.actors.reference import ActorRef, Teller

_log = logging.getLogger("callboard.thespian")

#: Seconds that the creation of an actor waits for the authority's answer.
VALIDATION_TIMEOUT: Final = 10.0


class Sources:
    """The sources of one system. Thread-safe."""

    def __init__(self, system: Teller) -> None:
        self._system = system
        self._changed = locks.condition("sources of Thespian classes", 690)
        self._accepted: dict[str, bytes] = {}
        self._pending: set[str] = set()
        self._ever: set[str] = set()  # also unloaded ones, whose actors may still run
        self._observers: list[ActorRef] = []
        self.authority: ActorRef | None = None

    # --- loading ---

    def load(self, source: str | Path | BinaryIO) -> str:
        """Send a file, given by name or open, to the authority; return its hash.

        Raises:
            OSError: the file cannot be read.
        """
        from hashlib import md5

        data = Path(source).read_bytes() if isinstance(source, str | Path) else source.read()
        source_hash = md5(data, usedforsecurity=False).hexdigest()
        authority = self.authority
        if authority is None:
            _log.warning("source %s is not loaded: no authority is registered", source_hash)
            return source_hash
        with self._changed:
            if source_hash in self._accepted:
                return source_hash
            self._pending.add(source_hash)
        authority.target.post(thespian.ValidateSource(source_hash, data), self._system)
        return source_hash

    def decided(self, message: Any, sender: ActorRef | None) -> bool:
        """Handle the authority's answer; return False if the message is not one."""
        if sender is None or sender != self.authority:
            return False
        poison = message.poisonMessage if isinstance(message, thespian.PoisonMessage) else None
        if isinstance(poison, thespian.ValidateSource):
            self._refuse(poison.sourceHash, "its authority failed")
        elif not isinstance(message, thespian.ValidatedSource):
            return False
        elif not message.sourceZip:
            self._refuse(message.sourceHash, "its authority refused it")
        else:
            self._accept(message.sourceHash, message.sourceZip)
        return True

    def _accept(self, source_hash: str, content: bytes) -> None:
        from zipfile import BadZipFile, ZipFile

        try:
            with ZipFile(io.BytesIO(content)) as archive:
                archive.namelist()
        except (BadZipFile, TypeError, ValueError) as error:
            self._refuse(source_hash, f"the answer of its authority is damaged: {error}")
            return
        with self._changed:
            if source_hash not in self._pending:
                _log.warning("source %s was accepted, but it is not being loaded", source_hash)
                return
            self._pending.discard(source_hash)
            self._accepted[source_hash] = content
            self._ever.add(source_hash)
            self._changed.notify_all()
            observers = list(self._observers)
        for address in observers:
            address.target.post(thespian.LoadedSource(source_hash, ""), self._system)

    def _refuse(self, source_hash: str, reason: str) -> None:
        _log.warning("source %s is not loaded: %s", source_hash, reason)
        with self._changed:
            self._pending.discard(source_hash)
            self._changed.notify_all()

    def unload(self, source_hash: str) -> None:
        """Refuse further actors of a source; the existing ones keep their modules."""
        with self._changed:
            self._pending.discard(source_hash)
            if self._accepted.pop(source_hash, None) is None:
                return
            observers = list(self._observers)
        for address in observers:
            address.target.post(thespian.UnloadedSource(source_hash, ""), self._system)

    # --- using ---

    def load_class(self, source_hash: str, module: str, name: str) -> Any:
        """Return a class of a source.

        Raises:
            InvalidActorSourceHash: the source is not loaded, or it was refused.
            ImportError: the source has no such module.
        """
        with self._changed:
            self._changed.wait_for(lambda: source_hash not in self._pending, VALIDATION_TIMEOUT)
            content = self._accepted.get(source_hash)
        if content is None:
            raise thespian.InvalidActorSourceHash(source_hash)
        from callboard.actors.thespian.source_loader import load_class

        return load_class(source_hash, content, module, name)

    def loaded(self) -> list[str]:
        """Return the hashes of the sources that actors can be created from."""
        return list(self._accepted)

    def notify(self, address: ActorRef, enable: bool) -> None:  # noqa: FBT001
        """Send an actor the loaded sources now, and each change later."""
        with self._changed:
            self._observers = [other for other in self._observers if other != address]
            if enable:
                self._observers.append(address)
            loaded = list(self._accepted) if enable else []
        for source_hash in loaded:
            address.target.post(thespian.LoadedSource(source_hash, ""), self._system)

    def close(self) -> None:
        """Unload all sources, and remove their modules from the process."""
        for source_hash in self.loaded():
            self.unload(source_hash)
        if self._ever:
            from callboard.actors.thespian.source_loader import forget

            for source_hash in self._ever:
                forget(source_hash)
        self._ever.clear()
