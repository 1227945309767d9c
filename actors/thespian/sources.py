"""Loaded sources: zip files with actors that a registered authority has accepted.

The hash of a source is the MD5 of what was given to `load` (Thespian's rule; it names, it does
not protect). The authority sees those bytes and answers with the zip file or a refusal. A
source is pending until then, and creating one of its actors waits for the answer.
"""

import hashlib
import io
import logging
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final
from zipfile import BadZipFile, ZipFile

from thespian.actors import (
    InvalidActorSourceHash,
    LoadedSource,
    PoisonMessage,
    UnloadedSource,
    ValidatedSource,
    ValidateSource,
)

from actors.reference import ActorRef
from actors.thespian import hash_import

if TYPE_CHECKING:
    from actors.thespian.system import SystemBase

log = logging.getLogger("callboard.thespian")

VALIDATION_TIMEOUT: Final = 10.0
"""Seconds that creating an actor waits for the authority to decide on its source."""


class Sources:
    """The sources of one system. Thread-safe."""

    def __init__(self, system: "SystemBase") -> None:
        self._system = system
        self._changed = threading.Condition()
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
        if isinstance(source, str | Path):
            data = Path(source).read_bytes()
        else:
            data = source.read()
        source_hash = hashlib.md5(data, usedforsecurity=False).hexdigest()
        authority = self.authority
        if authority is None:
            log.warning("source %s is not loaded: no authority is registered", source_hash)
            return source_hash
        with self._changed:
            if source_hash in self._accepted:
                return source_hash
            self._pending.add(source_hash)
        authority.target.post(ValidateSource(source_hash, data), self._system.cell)
        return source_hash

    def decided(self, message: Any, sender: ActorRef[Any] | None) -> bool:
        """Take the authority's answer; False when the message is none, or somebody else's."""
        if sender is None or sender != self.authority:
            return False
        if isinstance(message, PoisonMessage):
            if isinstance(message.poisonMessage, ValidateSource):
                self._refuse(message.poisonMessage.sourceHash, "its authority failed")
                return True
            return False
        if not isinstance(message, ValidatedSource):
            return False
        if not message.sourceZip:
            self._refuse(message.sourceHash, "its authority refused it")
            return True
        try:
            with ZipFile(io.BytesIO(message.sourceZip)) as archive:
                archive.namelist()
        except (BadZipFile, TypeError, ValueError) as error:
            self._refuse(message.sourceHash, f"what its authority returned is damaged: {error}")
            return True
        self._accept(message.sourceHash, message.sourceZip)
        return True

    def _accept(self, source_hash: str, content: bytes) -> None:
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
            address.target.post(LoadedSource(source_hash, ""), self._system.cell)

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
            address.target.post(UnloadedSource(source_hash, ""), self._system.cell)

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
            raise InvalidActorSourceHash(source_hash)
        return hash_import.load_class(source_hash, content, module, name)

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
            address.target.post(LoadedSource(source_hash, ""), self._system.cell)

    def close(self) -> None:
        """Unload everything; its modules leave the process."""
        for source_hash in self.loaded():
            self.unload(source_hash)
        for source_hash in self._ever:
            hash_import.forget(source_hash)
        self._ever.clear()
