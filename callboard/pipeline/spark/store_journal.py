"""Publishing the results of a micro-batch on an object store: all at once, and once.

Tasks write record batches into objects of their own, below `staged`. To publish, the driver
writes them again as segments with the offsets that come next, and creates the manifest that
lists these and says which batch of which query they are. That one create-if-absent is the
moment at which all of it is there; a publisher that was slower finds its batch published, or
begins anew with other offsets. See `commitlog.objects.manifest`.

Dead letters, and notes of what became of them, are such logs as well: what is appended there is
chosen anew for each try, with all before it in sight, so several writers add nothing twice.
"""

import logging
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import takewhile
from typing import Any, Final, TypeVar
from zlib import crc32

from callboard.commitlog import CommitLog, LogError, LogReader, Retention
from callboard.commitlog.batch import HEADER_SIZE, Header, decode_header, encode_header
from callboard.commitlog.objects.disk import ObjectDisk
from callboard.commitlog.objects.manifest import (
    STAGED,
    ListedSegment,
    Manifest,
    Manifests,
)
from callboard.commitlog.objects.store import FileSystemObjects, Objects, object_address
from callboard.commitlog.reader import is_archive
from callboard.commitlog.retention import SegmentLimits
from callboard.commitlog.segment import STEP, SegmentIndex
from callboard.pipeline.errors import InvalidSetting, PublishFailed
from callboard.pipeline.spark.journal import QUERIES, Staged
from callboard.pipeline.spark.segments import MANY, SMALL
from callboard.support.redaction import redacted

#: How the identity of a log of results begins, by what these are; archives have others.
RESULTS: Final = "results"
LETTERS: Final = "letters"
NOTES: Final = "notes"
_PIECE: Final = 8 << 20
_SEGMENT: Final = 64 << 20
#: Seconds in which a publication is tried again, and between two tries.
_PATIENCE: Final = 60.0
_PAUSE: Final = 0.5
#: Manifests between two looks for what tasks left that died.
_SWEEP: Final = 256

_Told = TypeVar("_Told")
_log = logging.getLogger("callboard.pipeline")


class StoreJournal:
    """A log on an object store into which queries publish, each batch once."""

    def __init__(
        self, objects: Objects, *, retain: Retention | None = None, kind: str = RESULTS
    ) -> None:
        """Name the place of the log, where nothing need be.

        Args:
            objects: The place.
            retain: How long results are kept, by the time when they were published; letters
                by their own times. The newest batch always is.
            kind: What the log holds; a log of another kind is refused.
        """
        self._objects = objects
        self._manifests = Manifests(objects)
        self._retain = retain or Retention()
        self._kind = kind

    @property
    def reader(self) -> LogReader | None:
        """A reader of all that was published until now; None where nothing was.

        Raises:
            LogFailed: the store refuses.
        """
        if self._manifests.newest(surely=True) is None:
            return None
        return LogReader(self._objects.url, disk=ObjectDisk(self._manifests))

    def stage(self, batches: Iterable[tuple[bytes, int]]) -> Staged:
        """Write encoded batches, each with how many records it has, where nobody reads them.

        Raises:
            PublishFailed: the store refuses.
        """
        name, records = uuid.uuid4().hex, 0

        def pieces() -> Iterator[bytes]:
            nonlocal records
            for data, count in batches:
                records += count
                yield data

        try:
            self._objects.write(f"{STAGED}/{name}", pieces())
        except LogError as error:
            what = f"results cannot be staged: {error}"
            raise PublishFailed(what) from error
        return Staged(name, records)

    def discard(self, staged: Iterable[Staged]) -> None:
        """Remove what tasks have written; what was published stays, and the rest is swept."""
        with suppress(LogError):
            for each in staged:
                self._objects.remove(f"{STAGED}/{each.name}")

    def published(self) -> dict[str, int]:
        """Return the last batch of each query that was published."""
        newest = self._manifests.newest(surely=True)
        return {} if newest is None else dict(newest.published)

    def publish(self, query: str, batch: int, staged: Sequence[Staged]) -> bool:
        """Publish what tasks have written; returns False if this batch was published before.

        Args:
            query: Which query it is, the same after a new start.
            batch: The number of its batch; each is greater than those before.
            staged: What its tasks have written, in the order in which it is to stand.

        Raises:
            PublishFailed: the store refuses for a minute, or holds another log.
        """
        full = [each for each in staged if each.records]
        made: list[ListedSegment] = []  # also of tries that were not heard
        what = f"batch {batch} of query {query}"
        try:
            is_fresh = _patiently(lambda: self._publish(query, batch, full, made), what)
        except FileNotFoundError as error:  # who published it has removed what was staged
            if self.published().get(query, -1) < batch:
                what = f"{what} is gone before it was published"
                raise PublishFailed(what) from error
            is_fresh = False
        self.discard(staged)
        if is_fresh and full:
            self._clear_up()
        return is_fresh

    def append(self, fill: Callable[[CommitLog], object]) -> None:
        """Append what `fill` puts into a log in memory; nothing if that is nothing.

        It is asked again whenever another writer was there first, or an answer was lost, and
        finds with `reader` what is there.

        Raises:
            PublishFailed: the store refuses for a minute, or holds another log.
        """

        def change(newest: Manifest | None) -> Manifest | None:
            newest = self._own(newest)
            with CommitLog() as made:
                fill(made)
                data = b"".join(made.place.read(each.path) for each in made.segments)
            if not data:
                return None
            rows = self._segments(newest.end, _batches_in(data))
            grown = newest._replace(segments=(*newest.segments, *rows))
            return grown.kept(self._retain, time.time_ns())

        if _patiently(lambda: self._manifests.change(change), f"{self._kind} of this query"):
            self._clear_up()

    def _own(self, newest: Manifest | None) -> Manifest:
        """Return the newest manifest of this log, or the first one.

        Raises:
            PublishFailed: the place has another log.
        """
        first = Manifest(0, f"{self._kind}-{uuid.uuid4().hex}", f"{self._kind} of Spark")
        newest = newest or first
        kind = newest.log.partition("-")[0]
        if kind == self._kind:
            return newest
        held = kind if kind in {RESULTS, LETTERS, NOTES} else "the archive"
        what = (
            f"{redacted(self._objects.url)} has {held} of {newest.origin}; give another place"
        )
        raise PublishFailed(what)

    def _publish(
        self, query: str, batch: int, staged: list[Staged], made: list[ListedSegment]
    ) -> bool:
        """Create the manifest that lists a batch; returns False if another one did."""
        is_fresh = True

        def change(newest: Manifest | None) -> Manifest | None:
            nonlocal is_fresh
            newest = self._own(newest)
            if newest.published.get(query, -1) >= batch:
                names = {each.name for each in made}
                is_fresh = any(each.name in names for each in newest.segments)
                return None
            if not staged:
                return None
            parts = (part for each in staged for part in self._batches(f"{STAGED}/{each.name}"))
            rows = list(self._segments(newest.end, parts))
            made.extend(rows)
            published = {**newest.published}
            published.pop(query, None)
            published[query] = batch  # the newest stands last
            return newest._replace(
                segments=(*newest.segments, *rows),
                published=dict(list(published.items())[-QUERIES:]),
            ).kept(self._retain, time.time_ns())

        self._manifests.change(change)
        return is_fresh

    def _segments(
        self, base: int, batches: Iterable[tuple[Header, bytes]]
    ) -> Iterator[ListedSegment]:
        """Write batches as segments with the offsets from `base` on."""
        parts: list[bytes] = []
        index, size = SegmentIndex(base), 0
        for header, body in batches:
            if size + len(body) > _SEGMENT and parts:
                yield self._write(index, parts)
                parts, size, index = [], 0, SegmentIndex(index.end)
            end = index.end + header.records
            parts += [encode_header(header._replace(base=index.end)), body]
            length = HEADER_SIZE + len(body)
            index.cover(index.end, end, length, header.latest_time)
            size += length
        if parts:
            yield self._write(index, parts)

    def _write(self, index: SegmentIndex, parts: list[bytes]) -> ListedSegment:
        """Write the objects of a segment, which nobody sees before they are listed."""
        data, base = b"".join(parts), index.first(0)
        name = f"{base:020}-{uuid.uuid4().hex}"
        latest = time.time_ns() if self._kind == RESULTS else index.latest
        made = ListedSegment(base, index.end, len(data), latest, crc32(data), name)
        self._objects.write(made.object, [data])
        if len(data) > STEP:
            encoded = index.encode()
            self._objects.write(made.index_object, [encoded])
            made = made._replace(index_bytes=len(encoded))
        return made

    def _batches(self, name: str) -> Iterator[tuple[Header, bytes]]:
        """Yield the headers and bodies of the batches in an object.

        Raises:
            PublishFailed: it is damaged.
        """
        at, data, is_whole = 0, b"", False
        while not is_whole:
            piece = self._objects.read(name, at, at + _PIECE)
            at, is_whole, cut = at + len(piece), len(piece) < _PIECE, 0
            data += piece
            for header, body in _batches_in(data):
                yield header, body
                cut += HEADER_SIZE + len(body)
            data = data[cut:]
        if data:
            what = f"{redacted(self._objects.url)}/{name} is damaged at byte {at - len(data)}"
            raise PublishFailed(what)

    def _clear_up(self) -> None:
        """Put small segments together, and sweep now and then; can be done later."""
        try:
            newest = self._manifests.newest()
            if newest is None:
                return
            if newest.number % _SWEEP == 0:
                self._manifests.sweep()
            small = list(takewhile(lambda each: each.bytes < SMALL, newest.segments[-2::-1]))
            if len(small) >= MANY:
                self._merge(small[::-1])
        except (LogError, FileNotFoundError) as error:
            _log.warning("segments of %s are not put in order: %s", self._objects.url, error)

    def _merge(self, small: list[ListedSegment]) -> None:
        """Put small segments into one, which takes their place in the next manifest."""
        limits, run, size = SegmentLimits.fitting(self._retain, None), small[:1], small[0].bytes
        for each in small[1:]:
            size += each.bytes
            is_wide = limits.records is not None and each.end - run[0].base > limits.records
            if size > limits.bytes or is_wide:
                break
            run.append(each)
        data = b"".join(self._objects.read(each.object) for each in run)
        if len(run) < 2 or len(data) != sum(each.bytes for each in run):
            return
        name = f"{run[0].base:020}-{uuid.uuid4().hex}"
        latest = max(each.latest_time for each in run)
        whole = ListedSegment(run[0].base, run[-1].end, len(data), latest, crc32(data), name)
        self._objects.write(whole.object, [data])

        def change(newest: Manifest | None) -> Manifest | None:
            rows = [] if newest is None else list(newest.segments)
            if newest is None or run[0] not in rows:
                return None  # retention or another publisher was here
            at = rows.index(run[0])
            if rows[at : at + len(run)] != run:
                return None
            return newest._replace(segments=(*rows[:at], whole, *rows[at + len(run) :]))

        self._manifests.change(change)


def journal_at(
    address: str,
    storage_options: Mapping[str, Any] | None = None,
    *,
    retain: Retention | None = None,
    kind: str = RESULTS,
) -> StoreJournal:
    """Return the log at an address that fsspec opens.

    Raises:
        InvalidSetting: logs are only read there, it means nothing, or a package is missing.
    """
    if not is_archive(address):
        what = f"{address} is served to be read; give a folder, or s3://…"
        raise InvalidSetting(what)
    try:
        objects = FileSystemObjects(object_address(address, storage_options))
    except LogError as error:
        raise InvalidSetting(str(error)) from None
    return StoreJournal(objects, retain=retain, kind=kind)


def _batches_in(data: bytes) -> Iterator[tuple[Header, bytes]]:
    """Yield the headers and bodies of whole batches, up to one that is cut off."""
    cut = 0
    while (header := decode_header(data, cut)) is not None:
        end = cut + HEADER_SIZE + header.length
        if end > len(data):
            return
        yield header, data[cut + HEADER_SIZE : end]
        cut = end


def _patiently(work: Callable[[], _Told], what: str) -> _Told:
    """Try to publish for a minute.

    Raises:
        PublishFailed: the store refuses for so long, or this cannot be.
    """
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            return work()
        except PublishFailed:
            raise
        except LogError as error:
            if time.monotonic() > deadline:
                what = f"{what} cannot be published: {error}"
                raise PublishFailed(what) from error
            time.sleep(_PAUSE)
