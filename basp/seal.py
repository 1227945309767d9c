"""The seal of a link with a secret: batches with a MAC, which only the two sides can create.

After ``hello`` each direction of a sealed link is a stream of batches. A batch holds any part
of the stream of frames: many small frames, or a piece of a large one.

====== ==== =======================================================
offset size field
====== ==== =======================================================
0      4    length of the content, 1 to ``CONTENT_LIMIT``
4      8    counter: 0 in the first batch of a direction, then one more in each
12     n    content: bytes of frames
12+n   16   MAC over all bytes before it
====== ==== =======================================================

Each direction of each link has its own key (:mod:`callboard.basp.handshake`), and each batch
has a counter, so a batch is invalid on another link, in the other direction, and at another
position of the stream. A receiver checks the MAC of a batch before it uses its content. No
batch marks the end: a clean end is a ``drop_conn`` inside the seal, and an end of the stream
without it is a loss.

The MAC is keyed BLAKE2b for up to ``SHORT`` bytes, and HMAC-SHA256 for more: each is the faster
one for its sizes. Both have 16 bytes, and keys of their own. They start from copies of prepared
states, which saves half the time for a small batch.
"""

import hmac
from collections.abc import Callable
from hashlib import blake2b, sha256
from struct import Struct
from typing import Any, Final, Self

from callboard.basp.errors import BrokenSeal

KEY_SIZE: Final = 32
MAC_SIZE: Final = 16
BATCH_HEADER: Final = Struct(">IQ")
BATCH_HEADER_SIZE: Final = 12
#: Bytes of a batch without its content.
OVERHEAD: Final = BATCH_HEADER_SIZE + MAC_SIZE
#: Bytes of the largest batch. Receivers read up to this size, so under load each read is one
#: batch.
BATCH_LIMIT: Final = 64 * 1024
CONTENT_LIMIT: Final = BATCH_LIMIT - OVERHEAD
#: Bytes of the longest content with the MAC for short batches.
SHORT: Final = 768
_SHORT_BATCH: Final = SHORT + OVERHEAD

#: Bytes that Python hashes without releasing the interpreter's lock: it releases it from 2,048
#: bytes on.
_PIECE: Final = 2047
_SHA_BLOCK: Final = 64

_pack = BATCH_HEADER.pack
_unpack = BATCH_HEADER.unpack_from
_equal = hmac.compare_digest


def never() -> bool:
    """Return that no other thread computes."""
    return False


class _Mac:
    """The MAC of one direction."""

    __slots__ = ("_inner", "_is_contended", "_outer", "short")

    def __init__(self, key: bytes, is_contended: Callable[[], bool]) -> None:
        if len(key) != KEY_SIZE:
            msg = f"the key of a seal must have {KEY_SIZE} bytes, not {len(key)}"
            raise ValueError(msg)
        short, long = (
            blake2b(label, key=key, digest_size=KEY_SIZE).digest()
            for label in (b"short", b"long")
        )
        #: The initial state of BLAKE2b; each batch uses a copy.
        self.short = blake2b(key=short, digest_size=MAC_SIZE)
        padded = long.ljust(_SHA_BLOCK, b"\0")
        self._inner = sha256(bytes(byte ^ 0x36 for byte in padded))
        self._outer = sha256(bytes(byte ^ 0x5C for byte in padded))
        self._is_contended = is_contended

    def __deepcopy__(self, _: Any) -> Self:
        """Return this object: its states are never changed."""
        return self

    def long(self, header: bytes | memoryview, content: bytes | memoryview) -> bytes:
        """Return the MAC of a long batch."""
        inner = self._inner.copy()
        inner.update(header)
        # If another thread computes, a thread that releases the interpreter's lock waits
        # milliseconds until it gets the lock back. Small pieces keep it.
        if self._is_contended():
            view = memoryview(content)
            for start in range(0, len(view), _PIECE):
                inner.update(view[start : start + _PIECE])
        else:
            inner.update(content)
        outer = self._outer.copy()
        outer.update(inner.digest())
        return outer.digest()[:MAC_SIZE]


class Sealer:
    """Writes the batches of one direction."""

    __slots__ = ("_counter", "_mac", "_start_short")

    def __init__(self, key: bytes, is_contended: Callable[[], bool] = never) -> None:
        """Start a direction.

        Args:
            key: 32 bytes, used for this direction only.
            is_contended: returns whether another thread computes. Then the interpreter's lock
                is not released while a long batch is hashed.

        Raises:
            ValueError: the key has another length.
        """
        self._mac = _Mac(key, is_contended)
        #: Kept as a bound method, because each small batch calls it.
        self._start_short = self._mac.short.copy
        self._counter = 0

    def seal(self, content: bytes | memoryview) -> bytes:
        """Return the next batch; its content has at most ``CONTENT_LIMIT`` bytes."""
        size = len(content)
        header = _pack(size, self._counter)
        if size <= SHORT:
            batch = header + content
            mac = self._start_short()
            mac.update(batch)
            batch += mac.digest()
        else:
            batch = b"".join((header, content, self._mac.long(header, content)))
        # Last: after a `MemoryError` above, the caller seals this batch again.
        self._counter += 1
        return batch

    def seal_all(self, data: bytes) -> bytes:
        """Return batches with all bytes of ``data``."""
        view = memoryview(data)
        starts = range(0, len(view), CONTENT_LIMIT)
        return b"".join(self.seal(view[start : start + CONTENT_LIMIT]) for start in starts)


class Opener:
    """Checks the batches of one direction, and returns their contents.

    After the first bad batch the opener stays failed: :attr:`error` has the reason, the
    contents of earlier batches are still returned, and all later bytes are ignored.
    """

    __slots__ = ("_counter", "_mac", "_pending", "_start_short", "_wanted", "error", "missing")

    def __init__(self, key: bytes, is_contended: Callable[[], bool] = never) -> None:
        """Start a direction; for the arguments see :class:`Sealer`.

        Raises:
            ValueError: the key has another length.
        """
        self._mac = _Mac(key, is_contended)
        #: Kept as a bound method, because each small batch calls it.
        self._start_short = self._mac.short.copy
        self._counter = 0
        #: An incomplete batch.
        self._pending = bytearray()
        #: Size of its header, or of the whole batch once the header is known.
        self._wanted = 0
        #: Bytes missing from this size; 0 without an incomplete batch. An attribute and not a
        #: property, because it is read before each read of a link.
        self.missing = 0
        #: The reason why opening has failed; None while the opener works.
        self.error: BrokenSeal | None = None

    def open(self, data: bytes) -> bytes | memoryview:
        """Return the contents of the batches that ``data`` completes; empty without any.

        The content of a single long batch is a view of ``data``, not a copy. Bad batches of a
        peer do not raise: check :attr:`error` after the call.
        """
        if self._pending:
            self._pending += data
            self.missing = self._wanted - len(self._pending)
            if self.missing > 0:
                return b""
            data = bytes(self._pending)
            self._pending.clear()
            self.missing = 0
        size = len(data)
        if OVERHEAD < size <= _SHORT_BATCH:  # usually one small batch: an ask or an answer
            length, counter = _unpack(data)
            if length == size - OVERHEAD and counter == self._counter and self.error is None:
                mac = self._start_short()
                mac.update(data[:-MAC_SIZE])
                if _equal(mac.digest(), data[-MAC_SIZE:]):
                    self._counter = counter + 1
                    return data[BATCH_HEADER_SIZE:-MAC_SIZE]
        return self._open_each(data)

    def _open_each(self, data: bytes) -> bytes | memoryview:
        """Open all batches of a read, and keep an incomplete one."""
        contents: list[memoryview] = []
        view, start, size = memoryview(data), 0, len(data)
        while self.error is None and start < size:
            self._wanted = BATCH_HEADER_SIZE
            if size - start >= BATCH_HEADER_SIZE:
                length, counter = _unpack(data, start)
                if not self._is_header_good(length, counter):
                    break
                self._wanted = length + OVERHEAD
            end = start + self._wanted
            if end > size or self._wanted == BATCH_HEADER_SIZE:
                self._pending += view[start:]
                self.missing = self._wanted - len(self._pending)
                break
            body = end - MAC_SIZE
            if not _equal(self._mac_of(view[start:body]), view[body:end]):
                msg = (
                    f"the MAC of batch {self._counter:,} is wrong: the batch was changed in "
                    "transit"
                )
                self.error = BrokenSeal(msg)
                break
            contents.append(view[start + BATCH_HEADER_SIZE : body])
            self._counter += 1
            start = end
        is_alone = len(contents) == 1 and len(contents[0]) == size - OVERHEAD > _PIECE
        return contents[0] if is_alone else b"".join(contents)

    def _is_header_good(self, length: int, counter: int) -> bool:
        """Return whether a batch may be the next one; set the error if not."""
        if not 0 < length <= CONTENT_LIMIT:
            msg = f"a batch must have 1 to {CONTENT_LIMIT:,} B, not {length:,}"
        elif counter != self._counter:
            msg = f"batch {counter:,} arrived instead of batch {self._counter:,}"
        else:
            return True
        self.error = BrokenSeal(f"{msg}: it was not sent as the next one of this link")
        return False

    def _mac_of(self, body: memoryview) -> bytes:
        """Return the correct MAC of a batch."""
        if len(body) <= SHORT + BATCH_HEADER_SIZE:
            mac = self._start_short()
            mac.update(body)
            return mac.digest()
        return self._mac.long(body[:BATCH_HEADER_SIZE], body[BATCH_HEADER_SIZE:])

    def read_size(self, limit: int) -> int:
        """Return the size of the next read: the rest of an incomplete batch, or ``limit``.

        So the next read starts with a batch, and under load each read is one batch. If
        :attr:`missing` is 0, the result is ``limit``.
        """
        return min(self.missing, limit) or limit

    def discard(self) -> None:
        """Free an incomplete batch, and open no more batches."""
        self._pending.clear()
        self.missing = 0
        self.error = self.error or BrokenSeal("received bytes were lost on this node")

    @property
    def held(self) -> int:
        """Bytes of the incomplete batch."""
        return len(self._pending)
