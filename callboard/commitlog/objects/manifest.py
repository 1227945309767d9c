"""Manifests: the list of the objects of a log. Each is published by one create-if-absent.

    manifests/00000000000000000012.json     numbered; the highest number is the valid one
    segments/00000000000000004096-NAME.log  a sealed segment, unchanged, under a unique name
    segments/00000000000000004096-NAME.index    the index of a large segment

A manifest lists all segments, so a reader needs only the newest one. To change the log, a
publisher reads the newest manifest, writes new objects under unique names, and creates the next
number. If another publisher has created that number, it starts again from the new manifest. So
a listed object is always complete, and a publication is never undone, even if a connection
breaks: a request that failed may have succeeded, which the next read of the manifests shows.

Only the last `MANIFEST_LIMIT` manifests are kept; older ones are removed, oldest first. A
publisher may be suspended until the number that it creates has been published and removed by
others. Its create would then succeed without effect. Therefore it checks afterwards whether the
manifest that it built on still exists, and starts again if it does not.

File: CRC-32 of the rest as 8 hexadecimal digits, a space, and JSON:

    {"format": 1, "log": id, "epochs": [[number, first offset], …],
     "origin": HOST:FOLDER, "published": {query: last batch, …},
     "segments": [[base, end, bytes, latest time, CRC-32, object, bytes of its index], …]}
"""

import json
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Final, NamedTuple
from zlib import crc32

from callboard.commitlog.errors import LogCorrupt, LogError, LogFailed
from callboard.commitlog.folder import INDEX, LAST_OFFSET, SEGMENT
from callboard.commitlog.identity.identity import checked_epochs
from callboard.commitlog.identity.position import Epoch, LogIdentity
from callboard.commitlog.objects.store import FileSystemObjects, Objects
from callboard.commitlog.retention import Retention
from callboard.commitlog.segment import SegmentInfo
from callboard.support.redaction import redacted

MANIFESTS: Final = "manifests"
SEGMENTS: Final = "segments"
#: Objects that tasks of Spark have written, before they are published.
STAGED: Final = "staged"
_OF_LOGS: Final = frozenset({MANIFESTS, SEGMENTS, STAGED, "positions"})
#: Manifests that are kept.
MANIFEST_LIMIT: Final = 32
#: Age in seconds at which an object that no manifest lists belongs to no running publisher.
ORPHAN_SECONDS: Final = 24 * 3600.0
_FORMAT: Final = 1
_DIGITS: Final = 20
_NUMBER: Final = re.compile(r"\d{20}\.json")
_OBJECT: Final = re.compile(r"[0-9a-z-]{1,100}", re.ASCII)
_TRIES: Final = 8


class ListedSegment(NamedTuple):
    """A sealed segment on the store, with the offsets from `base` to `end` (exclusive)."""

    base: int
    end: int
    bytes: int
    latest_time: int
    crc: int
    name: str
    index_bytes: int = 0

    @property
    def object(self) -> str:
        """The name of the object."""
        return f"{SEGMENTS}/{self.name}{SEGMENT}"

    @property
    def index_object(self) -> str:
        """The name of the object of its index."""
        return f"{SEGMENTS}/{self.name}{INDEX}"


class Manifest(NamedTuple):
    """A manifest.

    Attributes:
        number: Number of the manifest.
        log: Id of the log.
        origin: Host and folder of its writer, for people.
        segments: All segments, oldest first.
        published: The last batch of each query that wrote results into the log.
        epochs: The epochs of the log; empty if they are unknown.
    """

    number: int
    log: str
    origin: str
    segments: tuple[ListedSegment, ...] = ()
    published: Mapping[str, int] = {}
    epochs: tuple[Epoch, ...] = ()

    @property
    def identity(self) -> LogIdentity:
        """The identity of the log."""
        return LogIdentity(self.log, self.epochs)

    @property
    def name(self) -> str:
        """The name of its object."""
        return _name(self.number)

    @property
    def end(self) -> int:
        """The offset after the last record."""
        return self.segments[-1].end if self.segments else 0

    def kept(self, retain: Retention, now: int) -> "Manifest":
        """Return the manifest without expired segments."""
        if retain.is_unlimited or not self.segments:
            return self
        infos = [
            SegmentInfo(row.base, row.end, row.bytes, row.latest_time, row.name)
            for row in self.segments
        ]
        return self._replace(segments=self.segments[retain.count_expired(infos, now) :])

    def encode(self) -> bytes:
        """Return the manifest as bytes."""
        content = {
            "format": _FORMAT,
            "log": self.log,
            "origin": self.origin,
            "published": dict(self.published),
            "segments": self.segments,
        }
        if self.epochs:
            content["epochs"] = self.epochs
        data = json.dumps(content, separators=(",", ":")).encode()
        return b"%08x " % crc32(data) + data


def decode_manifest(data: bytes, number: int, url: str) -> Manifest:
    """Decode a manifest.

    Raises:
        LogCorrupt: the manifest is damaged.
        LogFailed: a newer callboard wrote it.
    """
    try:
        if int(data[:8], 16) == crc32(data[9:]):
            content = json.loads(data[9:])
            if content["format"] != _FORMAT:
                message = (
                    f"{redacted(url)} has format {content['format']};"
                    " read it with a newer callboard"
                )
                raise LogFailed(message)
            segments = tuple(ListedSegment(*row) for row in content["segments"])
            published = {str(query): int(n) for query, n in content["published"].items()}
            epochs = checked_epochs(content.get("epochs", ()))
            if _are_plausible(segments) and epochs is not None:
                log, origin = str(content["log"]), str(content["origin"])
                return Manifest(number, log, origin, segments, published, epochs)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
        pass
    message = (
        f"{redacted(url)}/{_name(number)} is damaged;"
        " put it back, or remove it, and the one before is valid"
    )
    raise LogCorrupt(message)


def _are_plausible(segments: Iterable[ListedSegment]) -> bool:
    """Return whether segments are in order, and their names stay inside their folder."""
    previous_end = 0
    for row in segments:
        numbers = (row.base, row.end, row.bytes, row.index_bytes, row.crc)
        are_numbers = all(type(number) is int and number >= 0 for number in numbers)
        are_numbers &= type(row.latest_time) is int
        if not are_numbers or not previous_end <= row.base < row.end <= LAST_OFFSET:
            return False
        if not _OBJECT.fullmatch(row.name):
            return False
        previous_end = row.end
    return True


def find_logs(objects: FileSystemObjects, folder: str = "") -> Iterator[str]:
    """Yield the names of the logs at a folder of the store and below it."""
    folders = objects.folders(folder)
    is_log = MANIFESTS in folders
    if is_log:
        yield folder
    for name in folders:
        if not is_log or name not in _OF_LOGS:
            yield from find_logs(objects, f"{folder}/{name}".lstrip("/"))


def _name(number: int) -> str:
    """Return the name of the object of a manifest."""
    return f"{MANIFESTS}/{number:0{_DIGITS}}.json"


_log = logging.getLogger("callboard.commitlog")


class Manifests:
    """The manifests of one log."""

    def __init__(self, objects: Objects) -> None:
        """Use an object store; no request is sent yet."""
        self.objects = objects
        self._last_number = -1

    def newest(self, *, surely: bool = False) -> Manifest | None:
        """Return the newest manifest; None if the store has none.

        Args:
            surely: Check also for manifests that the store does not list yet.

        Raises:
            LogCorrupt: the manifest is damaged.
            LogFailed: the store reports an error.
        """
        for _ in range(_TRIES):
            number = max([self._last_number, *self._numbers()])
            manifest = self._read(number)
            following = self._read(number + 1) if surely or number < 0 else None
            while following is not None:
                manifest, following = following, self._read(following.number + 1)
            if manifest is not None:
                self._last_number = manifest.number
                return manifest
            if number < 0:
                return None
            self._last_number = -1  # it was removed since, so there are newer ones
        message = f"{redacted(self.objects.url)} changes while it is read; try again"
        raise LogFailed(message)

    def change(self, change: Callable[[Manifest | None], Manifest | None]) -> Manifest | None:
        """Publish a change of the newest manifest; repeat it after changes of others.

        Args:
            change: Returns the next manifest, or None if there is nothing to change.

        Returns:
            The published manifest, or None.

        Raises:
            LogFailed: the store reports an error; the change may have been published.
        """
        while True:
            base = self.newest(surely=True)
            manifest = change(base)
            if manifest is None:
                return None
            manifest = manifest._replace(number=0 if base is None else base.number + 1)
            is_created = self.objects.create(manifest.name, manifest.encode())
            if is_created and self._is_next(base, manifest):
                self._last_number = manifest.number
                self._clear_up(base, manifest)
                return manifest
            self._last_number = max(self._last_number, manifest.number)

    def _is_next(self, base: Manifest | None, manifest: Manifest) -> bool:
        """Return whether a created manifest is the newest, not one that had been removed."""
        if base is not None:
            try:
                self.objects.read(base.name, 0, 1)
            except FileNotFoundError:
                return False
        return max(self._numbers(), default=-1) <= manifest.number

    def _clear_up(self, base: Manifest | None, manifest: Manifest) -> None:
        """Remove objects that a publication made obsolete; `sweep` removes the rest."""
        listed = {row.name for row in manifest.segments}
        try:
            for row in base.segments if base else ():
                if row.name not in listed:
                    self.objects.remove(row.object)
                    self.objects.remove(row.index_object)
            for number in self._numbers():
                if number <= manifest.number - MANIFEST_LIMIT:
                    self.objects.remove(_name(number))
        except LogError as error:
            _log.warning("old objects of %s were not removed: %s", self.objects.url, error)

    def sweep(self) -> int:
        """Remove the objects of publishers that have failed; return their number.

        An object is removed if no manifest lists it and it is `ORPHAN_SECONDS` older than the
        newest manifest. A publisher lists an object within half of that time, or not at all.
        """
        newest = self.newest(surely=True)
        if newest is None:
            return 0
        listed, count = {row.name for row in newest.segments}, 0
        for folder in (SEGMENTS, STAGED):
            for name in self.objects.names(folder):
                if name.partition(".")[0] in listed:
                    continue
                with suppress(FileNotFoundError):
                    if self.objects.age(f"{folder}/{name}", newest.name) > ORPHAN_SECONDS:
                        self.objects.remove(f"{folder}/{name}")
                        count += 1
        return count

    def _numbers(self) -> list[int]:
        """Return the numbers of all manifests that the store lists, in order."""
        names = self.objects.names(MANIFESTS)
        return [int(name[:_DIGITS]) for name in names if _NUMBER.fullmatch(name)]

    def _read(self, number: int) -> Manifest | None:
        """Return the manifest with a number; None if it does not exist."""
        if number < 0:
            return None
        try:
            data = self.objects.read(_name(number))
        except FileNotFoundError:
            return None
        return decode_manifest(data, number, self.objects.url)
