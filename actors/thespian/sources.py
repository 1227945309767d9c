"""Loaded sources: zip files with actors that a registered authority has accepted.

The hash of a source is the MD5 of what was given to `load` (Thespian's rule; it names, it does
not protect). The authority sees those bytes and answers with the zip file or a refusal. A
source is pending until then, and creating one of its actors waits for the answer.

What reads zip files and loads modules is imported with the first source.
"""

import io
import logging
from pathlib import Path
from typing import Any, BinaryIO, Final

from thespian import actors as thespian

from callboard import locks
from callboard.actors.reference import ActorRef, Teller

log = logging.getLogger("callboard.thespian")

#: Seconds that creating an actor waits for the authority to decide on its source.
VALIDATION_TIMEOUT: Final = 10.0


class Sources:
    """The sources of one system. Thread-safe."""

    def __init__(self, system: Teller) -> None:
        self._system = system
        self._changed = locks.condition("sources of Thespian classes", 690)
        self._accepted: dict[str, bytes] = {}
        self._pending: set[str] = set()
        self._ever: set[str] = set()  # unloaded ones, too: their actors may go on
        self._told: list[ActorRef[Any]] = []
        self.authority: ActorRef[Any] | None = None

    # --- loading ---

    def load(self, source: str | Path | BinaryIO) -> str:
        """Offer a file, by name or open, to the authority; returns its hash.

        Raises:
            OSError: the file cannot be read.
        """
        from hashlib import md5

        data = Path(source).read_bytes() if isinstance(source, str | Path) else source.read()
        source_hash = md5(data, usedforsecurity=False).hexdigest()
        authority = self.authority
        if authority is None:
            log.warning("source %s is not loaded: no authority is registered", source_hash)
            return source_hash
        with self._changed:
            if source_hash in self._accepted:
                return source_hash
            self._pending.add(source_hash)
        authority.target.post(thespian.ValidateSource(source_hash, data), self._system)
        return source_hash

    def decided(self, message: Any, sender: ActorRef[Any] | None) -> bool:
        """Take the authority's answer; False when it is not one, or another actor's."""
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
            self._refuse(source_hash, f"what its authority returned is damaged: {error}")
            return
        with self._changed:
            if source_hash not in self._pending:
                log.warning("source %s was accepted, but nobody loads it", source_hash)
                return
            self._pending.discard(source_hash)
            self._accepted[source_hash] = content
            self._ever.add(source_hash)
            self._changed.notify_all()
            told = list(self._told)
        for address in told:
            address.target.post(thespian.LoadedSource(source_hash, ""), self._system)

    def _refuse(self, source_hash: str, why: str) -> None:
        log.warning("source %s is not loaded: %s", source_hash, why)
        with self._changed:
            self._pending.discard(source_hash)
            self._changed.notify_all()

    def unload(self, source_hash: str) -> None:
        """Create no more actors of a source; those that live keep their modules."""
        with self._changed:
            self._pending.discard(source_hash)
            if self._accepted.pop(source_hash, None) is None:
                return
            told = list(self._told)
        for address in told:
            address.target.post(thespian.UnloadedSource(source_hash, ""), self._system)

    # --- using ---

    def load_class(self, source_hash: str, module: str, name: str) -> Any:
        """Return a class of a source.

        Raises:
            InvalidActorSourceHash: the source is not loaded, or was refused.
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
        """List the hashes of the sources that actors can be created from."""
        return list(self._accepted)

    def notify(self, address: ActorRef[Any], enable: bool) -> None:  # noqa: FBT001
        """Tell an actor of the sources that are loaded, and of each change."""
        with self._changed:
            self._told = [each for each in self._told if each != address]
            if enable:
                self._told.append(address)
            loaded = list(self._accepted) if enable else []
        for source_hash in loaded:
            address.target.post(thespian.LoadedSource(source_hash, ""), self._system)

    def close(self) -> None:
        """Unload everything; its modules leave the process."""
        for source_hash in self.loaded():
            self.unload(source_hash)
        if self._ever:
            from callboard.actors.thespian.source_loader import forget

            for source_hash in self._ever:
                forget(source_hash)
        self._ever.clear()
