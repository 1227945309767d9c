"""Manifests: which objects are a log, in which order. Published by one create-if-absent each.

    manifests/00000000000000000012.json     numbered; the one with the highest number counts
    segments/00000000000000004096-NAME.log  a sealed segment as it was, under a name used once
    segments/00000000000000004096-NAME.index    its index, where it is long

A manifest lists all segments, so reading one is enough. To change anything a publisher reads
the newest one, writes what it needs to other names, and creates the next number; if another
publisher was there first, it looks again and begins anew. So a listed object is always whole,
and what was published stays published, whatever is cut off or answered too late: a request that
failed may have succeeded, which shows at the next look.

Older manifests go but the last `KEPT`, the oldest first. A publisher that slept for so long
that the number it wants was removed would create it again, unseen: therefore it looks whether
the manifest that it built on is still there, and if not, begins anew.

File: CRC-32 of the rest as 8 hexadecimal digits, a space, and JSON:

    {"format": 1, "log": identity, "origin": HOST:FOLDER, "published": {query: last batch, …},
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
from callboard.commitlog.objects.store import FileSystemObjects, Objects
from callboard.commitlog.retention import Retention
from callboard.commitlog.segment import SegmentInfo
from callboard.support.redaction import redacted

MANIFESTS: Final = "manifests"
SEGMENTS: Final = "segments"
#: What tasks of Spark have written and nobody has published.
STAGED: Final = "staged"
_OF_LOGS: Final = frozenset({MANIFESTS, SEGMENTS, STAGED, "positions"})
#: Manifests that are kept.
KEPT: Final = 32
#: Seconds after which an object that no manifest lists is of no publisher any more.
ORPHANED: Final = 24 * 3600.0
_FORMAT: Final = 1
_DIGITS: Final = 20
_NUMBER: Final = re.compile(r"\d{20}\.json")
_OBJECT: Final = re.compile(r"[0-9a-z-]{1,100}", re.ASCII)
_TRIES: Final = 8


class ListedSegment(NamedTuple):
    """A sealed segment on the store: offsets from `base` up to, not with, `end`."""

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
        """The name of the object with its index."""
        return f"{SEGMENTS}/{self.name}{INDEX}"


class Manifest(NamedTuple):
    """What a log is on the store.

    Attributes:
        number: Its own number.
        log: The identity of the log.
        origin: Where it is written, for people.
        segments: All of them, oldest first.
        published: The last batch of each query that wrote results into it.
    """

    number: int
    log: str
    origin: str
    segments: tuple[ListedSegment, ...] = ()
    published: Mapping[str, int] = {}

    @property
    def name(self) -> str:
        """The name of its object."""
        return _name(self.number)

    @property
    def end(self) -> int:
        """The offset behind the last record."""
        return self.segments[-1].end if self.segments else 0

    def kept(self, retain: Retention, now: int) -> "Manifest":
        """Return it without the segments that retention ends."""
        if retain.is_unlimited or not self.segments:
            return self
        infos = [
            SegmentInfo(each.base, each.end, each.bytes, each.latest_time, each.name)
            for each in self.segments
        ]
        return self._replace(segments=self.segments[retain.count_expired(infos, now) :])

    def encode(self) -> bytes:
        """Return it as bytes."""
        told = {
            "format": _FORMAT,
            "log": self.log,
            "origin": self.origin,
            "published": dict(self.published),
            "segments": self.segments,
        }
        data = json.dumps(told, separators=(",", ":")).encode()
        return b"%08x " % crc32(data) + data


def decode_manifest(data: bytes, number: int, url: str) -> Manifest:
    """Return a manifest that was encoded.

    Raises:
        LogCorrupt: it is damaged.
        LogFailed: a newer callboard wrote it.
    """
    try:
        if int(data[:8], 16) == crc32(data[9:]):
            told = json.loads(data[9:])
            if told["format"] != _FORMAT:
                what = (
                    f"{redacted(url)}"
                    f" has format {told['format']}, which a newer callboard reads"
                )
                raise LogFailed(what)
            segments = tuple(ListedSegment(*each) for each in told["segments"])
            published = {str(each): int(batch) for each, batch in told["published"].items()}
            if _are_plausible(segments):
                log, origin = str(told["log"]), str(told["origin"])
                return Manifest(number, log, origin, segments, published)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
        pass
    what = (
        f"{redacted(url)}"
        f"/{_name(number)} is damaged; put it back, or remove it: the one before counts"
    )
    raise LogCorrupt(what)


def _are_plausible(segments: Iterable[ListedSegment]) -> bool:
    """Return whether segments follow each other, and name nothing outside their folder."""
    behind = 0
    for each in segments:
        numbers = (each.base, each.end, each.bytes, each.index_bytes, each.crc)
        are_numbers = all(type(number) is int and number >= 0 for number in numbers)
        are_numbers &= type(each.latest_time) is int
        if not are_numbers or not behind <= each.base < each.end <= LAST_OFFSET:
            return False
        if not _OBJECT.fullmatch(each.name):
            return False
        behind = each.end
    return True


def find_logs(objects: FileSystemObjects, folder: str = "") -> Iterator[str]:
    """Yield the folders below one that hold a log, by their names there."""
    within = objects.folders(folder)
    is_log = MANIFESTS in within
    if is_log:
        yield folder
    for name in within:
        if not is_log or name not in _OF_LOGS:
            yield from find_logs(objects, f"{folder}/{name}".lstrip("/"))


def _name(number: int) -> str:
    """Return the name of the object of a manifest."""
    return f"{MANIFESTS}/{number:0{_DIGITS}}.json"


_log = logging.getLogger("callboard.commitlog")


class Manifests:
    """The manifests of one log."""

    def __init__(self, objects: Objects) -> None:
        """Name the store; nothing is asked yet."""
        self.objects = objects
        self._known = -1

    def newest(self, *, surely: bool = False) -> Manifest | None:
        """Return the newest manifest there is to be seen; None if there is none.

        Args:
            surely: Look behind what the store lists, which may be late.

        Raises:
            LogCorrupt: it is damaged.
            LogFailed: the store refuses.
        """
        for _ in range(_TRIES):
            number = max([self._known, *self._numbers()])
            found = self._read(number)
            following = self._read(number + 1) if surely or number < 0 else None
            while following is not None:
                found, following = following, self._read(following.number + 1)
            if found is not None:
                self._known = found.number
                return found
            if number < 0:
                return None
            self._known = -1  # it was removed meanwhile: there are newer ones
        what = f"{redacted(self.objects.url)} changes while it is read; try again"
        raise LogFailed(what)

    def change(self, change: Callable[[Manifest | None], Manifest | None]) -> Manifest | None:
        """Publish what `change` makes of the newest manifest; it is asked anew after others.

        Args:
            change: Returns the next manifest, or None where there is nothing to change.

        Returns:
            What was published, or None.

        Raises:
            LogFailed: the store refuses; the change may have come about, so look again.
        """
        while True:
            before = self.newest(surely=True)
            after = change(before)
            if after is None:
                return None
            after = after._replace(number=0 if before is None else before.number + 1)
            if self.objects.create(after.name, after.encode()) and self._counts(before, after):
                self._known = after.number
                self._clear_up(before, after)
                return after
            self._known = max(self._known, after.number)

    def _counts(self, before: Manifest | None, after: Manifest) -> bool:
        """Return whether a manifest that was created is the next one, and no removed one."""
        if before is not None:
            try:
                self.objects.read(before.name, 0, 1)
            except FileNotFoundError:
                return False
        return max(self._numbers(), default=-1) <= after.number

    def _clear_up(self, before: Manifest | None, after: Manifest) -> None:
        """Remove what a publication made needless; what stays is swept later."""
        listed = {each.name for each in after.segments}
        try:
            for each in before.segments if before else ():
                if each.name not in listed:
                    self.objects.remove(each.object)
                    self.objects.remove(each.index_object)
            for number in self._numbers():
                if number <= after.number - KEPT:
                    self.objects.remove(_name(number))
        except LogError as error:
            _log.warning("%s is not cleared up: %s", self.objects.url, error)

    def sweep(self) -> int:
        """Remove what publishers left that died; returns how many objects.

        Only what no manifest lists, and what is `ORPHANED` older than the newest one: a
        publisher lists only what it has written within half of that time.
        """
        newest = self.newest(surely=True)
        if newest is None:
            return 0
        listed, gone = {each.name for each in newest.segments}, 0
        for folder in (SEGMENTS, STAGED):
            for name in self.objects.names(folder):
                if name.partition(".")[0] in listed:
                    continue
                with suppress(FileNotFoundError):
                    if self.objects.age(f"{folder}/{name}", newest.name) > ORPHANED:
                        self.objects.remove(f"{folder}/{name}")
                        gone += 1
        return gone

    def _numbers(self) -> list[int]:
        """Return the numbers of all manifests that are listed, in order."""
        names = self.objects.names(MANIFESTS)
        return [int(each[:_DIGITS]) for each in names if _NUMBER.fullmatch(each)]

    def _read(self, number: int) -> Manifest | None:
        """Return a manifest, if there is one of this number."""
        if number < 0:
            return None
        try:
            data = self.objects.read(_name(number))
        except FileNotFoundError:
            return None
        return decode_manifest(data, number, self.objects.url)
