"""Publishing micro-batches on an object store, atomically and once.

Tasks write record batches into their own objects, below `staged`. To publish, the driver copies
them into segments with the next offsets. Then it creates the manifest that lists these segments
and names the batch and its query. This one create-if-absent makes the batch visible. A slower
publisher either finds the batch published, or starts over with other offsets. See
`commitlog.objects.manifest`.

Logs of dead letters and of requeue notes work alike. For each attempt the records to append are
selected again, with all earlier records visible, so concurrent writers add nothing twice.
"""

import logging
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import takewhile
from typing import Any, Final, TypeVar
from zlib import crc32

from callboard.backoff import Backoff, retried
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
from callboard.pipeline.spark.journal import QUERIES, StagedSegment
from callboard.pipeline.spark.segments import MANY, SMALL
from callboard.support.redaction import redacted

#: First part of a log's identity, by its kind; archives have other identities.
RESULTS: Final = "results"
LETTERS: Final = "letters"
NOTES: Final = "notes"
_PIECE: Final = 8 << 20
_SEGMENT: Final = 64 << 20
#: Seconds for which a publication is retried, and between two attempts.
_PATIENCE: Final = 60.0
_PAUSE: Final = 0.5
#: Manifests between two searches for staged objects of dead tasks.
_SWEEP: Final = 256

_Result = TypeVar("_Result")
_log = logging.getLogger("callboard.pipeline")


class StoreJournal:
    """A log on an object store in which queries publish each batch once."""

    def __init__(
        self, objects: Objects, *, retain: Retention | None = None, kind: str = RESULTS
    ) -> None:
        """Open the place of a log, which need not exist.

        Args:
            objects: The place.
            retain: How long results are kept, by their publication time; dead letters by their
                own time. The newest batch is always kept.
            kind: Kind of log; a log of another kind is refused.
        """
        self._objects = objects
        self._manifests = Manifests(objects)
        self._retain = retain or Retention()
        self._kind = kind

    @property
    def reader(self) -> LogReader | None:
        """A reader of the published records; None if there are none.

        Raises:
            LogFailed: the store fails.
        """
        if self._manifests.newest(surely=True) is None:
            return None
        return LogReader(self._objects.url, disk=ObjectDisk(self._manifests))

    def stage(self, batches: Iterable[tuple[bytes, int]]) -> StagedSegment:
        """Write encoded batches, with their numbers of records, invisibly for readers.

        Raises:
            PublishFailed: the store fails.
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
            msg = f"results cannot be staged: {error}"
            raise PublishFailed(msg) from error
        return StagedSegment(name, records)

    def discard(self, staged: Iterable[StagedSegment]) -> None:
        """Remove staged objects; an error leaves them to `sweep`."""
        with suppress(LogError):
            for staged_rows in staged:
                self._objects.remove(f"{STAGED}/{staged_rows.name}")

    def published(self) -> dict[str, int]:
        """Return the last published batch of each query."""
        newest = self._manifests.newest(surely=True)
        return {} if newest is None else dict(newest.published)

    def publish(
        self, query: str, batch: int, staged: Sequence[StagedSegment], run: str = ""
    ) -> bool:
        """Publish staged rows; return False if the batch is published already.

        Args:
            query: Id of the query, which stays the same after a restart.
            batch: Number of its batch, greater than all earlier ones.
            staged: Rows of its tasks, in the order in which to publish them.
            run: Ignored: a manifest is never undone, so the log has one epoch.

        Raises:
            PublishFailed: the store fails for a minute, or holds another log.
        """
        nonempty = [staged_rows for staged_rows in staged if staged_rows.records]
        segments: list[ListedSegment] = []  # of all attempts, also those without a reply
        label = f"batch {batch} of query {query}"
        try:
            is_fresh = _patiently(
                lambda: self._publish(query, batch, nonempty, segments), label
            )
        except FileNotFoundError as error:  # another publisher has removed the staged objects
            if self.published().get(query, -1) < batch:
                msg = f"{label} was removed before it was published"
                raise PublishFailed(msg) from error
            is_fresh = False
        self.discard(staged)
        if is_fresh and nonempty:
            self._clear_up()
        return is_fresh

    def append(self, fill: Callable[[CommitLog], object]) -> None:
        """Append the records that `fill` puts into an empty log in memory, if any.

        `fill` is called again if another writer was first, or a reply was lost. It can use
        `reader` to find the records that exist.

        Raises:
            PublishFailed: the store fails for a minute, or holds another log.
        """

        def change(newest: Manifest | None) -> Manifest | None:
            newest = self._own(newest)
            with CommitLog() as log:
                fill(log)
                data = b"".join(log.place.read(segment.path) for segment in log.segments)
            if not data:
                return None
            rows = self._segments(newest.end, _batches_in(data))
            manifest = newest._replace(segments=(*newest.segments, *rows))
            return manifest.kept(self._retain, time.time_ns())

        if _patiently(lambda: self._manifests.change(change), f"{self._kind} of this query"):
            self._clear_up()

    def _own(self, newest: Manifest | None) -> Manifest:
        """Return the newest manifest of this log, or a first one.

        Raises:
            PublishFailed: the place holds another log.
        """
        first = Manifest(0, f"{self._kind}-{uuid.uuid4().hex}", f"{self._kind} of Spark")
        newest = newest or first
        kind = newest.log.partition("-")[0]
        if kind == self._kind:
            return newest
        holds = kind if kind in {RESULTS, LETTERS, NOTES} else "the archive"
        msg = (
            f"{redacted(self._objects.url)} holds {holds} of {newest.origin}; use another place"
        )
        raise PublishFailed(msg)

    def _publish(
        self, query: str, batch: int, staged: list[StagedSegment], segments: list[ListedSegment]
    ) -> bool:
        """Create the manifest that lists a batch; return False if another one does."""
        is_fresh = True

        def change(newest: Manifest | None) -> Manifest | None:
            nonlocal is_fresh
            newest = self._own(newest)
            if newest.published.get(query, -1) >= batch:
                names = {item.name for item in segments}
                is_fresh = any(item.name in names for item in newest.segments)
                return None
            if not staged:
                return None
            parts = (part for item in staged for part in self._batches(f"{STAGED}/{item.name}"))
            rows = list(self._segments(newest.end, parts))
            segments.extend(rows)
            published = {**newest.published}
            published.pop(query, None)
            published[query] = batch  # the newest is last
            return newest._replace(
                segments=(*newest.segments, *rows),
                published=dict(list(published.items())[-QUERIES:]),
            ).kept(self._retain, time.time_ns())

        self._manifests.change(change)
        return is_fresh

    def _segments(
        self, base: int, batches: Iterable[tuple[Header, bytes]]
    ) -> Iterator[ListedSegment]:
        """Write batches as segments whose offsets start at `base`."""
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
        """Write the objects of a segment; they are invisible until listed."""
        data, base = b"".join(parts), index.first(0)
        name = f"{base:020}-{uuid.uuid4().hex}"
        latest = time.time_ns() if self._kind == RESULTS else index.latest
        segment = ListedSegment(base, index.end, len(data), latest, crc32(data), name)
        self._objects.write(segment.object, [data])
        if len(data) > STEP:
            encoded = index.encode()
            self._objects.write(segment.index_object, [encoded])
            segment = segment._replace(index_bytes=len(encoded))
        return segment

    def _batches(self, name: str) -> Iterator[tuple[Header, bytes]]:
        """Yield the headers and bodies of the batches in an object.

        Raises:
            PublishFailed: the object is damaged.
        """
        offset, data, is_whole = 0, b"", False
        while not is_whole:
            piece = self._objects.read(name, offset, offset + _PIECE)
            offset, is_whole, cut = offset + len(piece), len(piece) < _PIECE, 0
            data += piece
            for header, body in _batches_in(data):
                yield header, body
                cut += HEADER_SIZE + len(body)
            data = data[cut:]
        if data:
            msg = (
                f"{redacted(self._objects.url)}/{name} is damaged at byte {offset - len(data)}"
            )
            raise PublishFailed(msg)

    def _clear_up(self) -> None:
        """Merge small segments, and sweep from time to time; errors are logged only."""
        try:
            newest = self._manifests.newest()
            if newest is None:
                return
            if newest.number % _SWEEP == 0:
                self._manifests.sweep()
            small = list(
                takewhile(lambda segment: segment.bytes < SMALL, newest.segments[-2::-1])
            )
            if len(small) >= MANY:
                self._merge(small[::-1])
        except (LogError, FileNotFoundError) as error:
            _log.warning("cannot merge segments of %s: %s", self._objects.url, error)

    def _merge(self, small: list[ListedSegment]) -> None:
        """Merge small segments into one, which replaces them in the next manifest."""
        limits, run, size = SegmentLimits.fitting(self._retain, None), small[:1], small[0].bytes
        for segment in small[1:]:
            size += segment.bytes
            is_wide = limits.records is not None and segment.end - run[0].base > limits.records
            if size > limits.bytes or is_wide:
                break
            run.append(segment)
        data = b"".join(self._objects.read(segment.object) for segment in run)
        if len(run) < 2 or len(data) != sum(segment.bytes for segment in run):
            return
        name = f"{run[0].base:020}-{uuid.uuid4().hex}"
        latest = max(segment.latest_time for segment in run)
        whole = ListedSegment(run[0].base, run[-1].end, len(data), latest, crc32(data), name)
        self._objects.write(whole.object, [data])

        def change(newest: Manifest | None) -> Manifest | None:
            rows = [] if newest is None else list(newest.segments)
            if newest is None or run[0] not in rows:
                return None  # retention or another publisher has changed the list
            position = rows.index(run[0])
            if rows[position : position + len(run)] != run:
                return None
            return newest._replace(
                segments=(*rows[:position], whole, *rows[position + len(run) :])
            )

        self._manifests.change(change)


def journal_at(
    address: str,
    storage_options: Mapping[str, Any] | None = None,
    *,
    retain: Retention | None = None,
    kind: str = RESULTS,
) -> StoreJournal:
    """Return the log at an address for fsspec.

    Raises:
        InvalidSetting: logs at this address are read-only, it is invalid, or a package is
            missing.
    """
    if not is_archive(address):
        msg = f"{address} is read-only; use a folder, or s3://…"
        raise InvalidSetting(msg)
    try:
        objects = FileSystemObjects(object_address(address, storage_options))
    except LogError as error:
        raise InvalidSetting(str(error)) from None
    return StoreJournal(objects, retain=retain, kind=kind)


def _batches_in(data: bytes) -> Iterator[tuple[Header, bytes]]:
    """Yield the headers and bodies of complete batches."""
    cut = 0
    while (header := decode_header(data, cut)) is not None:
        end = cut + HEADER_SIZE + header.length
        if end > len(data):
            return
        yield header, data[cut + HEADER_SIZE : end]
        cut = end


def _patiently(work: Callable[[], _Result], label: str) -> _Result:
    """Call a function until it succeeds, for a minute.

    Raises:
        PublishFailed: the store failed for a minute, or the function raised this error.
    """
    try:
        return retried(work, LogError, Backoff.fixed(_PAUSE), _PATIENCE)
    except LogError as error:
        msg = f"{label} cannot be published: {error}"
        raise PublishFailed(msg) from error
