"""Publishing the results of a micro-batch on an object store: all at once, and once.

Tasks write record batches into objects of their own, below `staged`. To publish, the driver
writes them again as segments with the offsets that come next, and creates the manifest that
lists these and says which batch of which query they are. That one create-if-absent is the
moment at which all of it is there; a publisher that was slower finds its batch published, or
begins anew with other offsets. See `commitlog.objects.manifest`.
"""

import logging
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import takewhile
from typing import Final
from zlib import crc32

from callboard.commitlog import LogError, Retention
from callboard.commitlog.batch import HEADER_SIZE, Header, decode_header, encode_header
from callboard.commitlog.objects.manifest import (
    STAGED,
    ListedSegment,
    Manifest,
    Manifests,
)
from callboard.commitlog.objects.store import Objects
from callboard.commitlog.retention import SegmentLimits
from callboard.commitlog.segment import STEP, SegmentIndex
from callboard.pipeline.errors import PublishFailed
from callboard.pipeline.spark.journal import QUERIES, Staged
from callboard.pipeline.spark.segments import MANY, SMALL

#: How the identity of a log of results begins; archives have others.
_RESULTS: Final = "results-"
_PIECE: Final = 8 << 20
_SEGMENT: Final = 64 << 20
#: Seconds in which a publication is tried again, and between two tries.
_PATIENCE: Final = 60.0
_PAUSE: Final = 0.5
#: Manifests between two looks for what tasks left that died.
_SWEEP: Final = 256

_log = logging.getLogger("callboard.pipeline")


class StoreJournal:
    """A log on an object store into which queries publish, each batch once."""

    def __init__(self, objects: Objects, *, retain: Retention | None = None) -> None:
        """Name the place of the log, where nothing need be.

        Args:
            objects: The place.
            retain: How long results are kept, by the time when they were published; the
                newest batch always is.
        """
        self._objects = objects
        self._manifests = Manifests(objects)
        self._retain = retain or Retention()

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
        full, deadline = [each for each in staged if each.records], time.monotonic() + _PATIENCE
        made: list[ListedSegment] = []  # also of tries that were not heard
        is_fresh: bool | None = None
        while is_fresh is None:
            try:
                is_fresh = self._publish(query, batch, full, made)
            except PublishFailed:
                raise
            except FileNotFoundError as error:  # who published it has removed what was staged
                if self.published().get(query, -1) < batch:
                    what = f"batch {batch} of query {query} is gone before it was published"
                    raise PublishFailed(what) from error
                is_fresh = False
            except LogError as error:
                if time.monotonic() > deadline:
                    what = f"batch {batch} of query {query} cannot be published: {error}"
                    raise PublishFailed(what) from error
                time.sleep(_PAUSE)
        self.discard(staged)
        if is_fresh and full:
            self._clear_up()
        return is_fresh

    def _publish(
        self, query: str, batch: int, staged: list[Staged], made: list[ListedSegment]
    ) -> bool:
        """Create the manifest that lists a batch; returns False if another one did."""
        is_fresh = True

        def change(newest: Manifest | None) -> Manifest | None:
            nonlocal is_fresh
            newest = newest or Manifest(0, f"{_RESULTS}{uuid.uuid4().hex}", "results of Spark")
            if not newest.log.startswith(_RESULTS):
                origin = f"the archive of {newest.origin}; give another place"
                what = f"{self._objects.url} has {origin}"
                raise PublishFailed(what)
            if newest.published.get(query, -1) >= batch:
                names = {each.name for each in made}
                is_fresh = any(each.name in names for each in newest.segments)
                return None
            if not staged:
                return None
            rows = list(self._segments(newest.end, staged))
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

    def _segments(self, base: int, staged: list[Staged]) -> Iterator[ListedSegment]:
        """Write what was staged as segments with the offsets from `base` on."""
        parts: list[bytes] = []
        index, size = SegmentIndex(base), 0
        for each in staged:
            for header, body in self._batches(f"{STAGED}/{each.name}"):
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
        now = time.time_ns()
        made = ListedSegment(base, index.end, len(data), now, crc32(data), name)
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
            while (header := decode_header(data, cut)) is not None:
                end = cut + HEADER_SIZE + header.length
                if end > len(data):
                    break
                yield header, data[cut + HEADER_SIZE : end]
                cut = end
            data = data[cut:]
        if data:
            what = f"{self._objects.url}/{name} is damaged at byte {at - len(data)}"
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
        whole = ListedSegment(
            run[0].base, run[-1].end, len(data), run[-1].latest_time, crc32(data), name
        )
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
