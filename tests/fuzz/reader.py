"""The header and frame reader: any stream gives frames, or one typed error."""

import random
import tracemalloc

from callboard.basp.errors import RemoteProtocolError
from callboard.basp.frame import Frame, FrameReader, pack_frame, repack_frame
from callboard.basp.header import OPERATION_COUNT
from tests.basp.wire import held_bytes
from tests.fuzz.case import READ, Case, require
from tests.fuzz.mutation import cut, mutate_bytes, mutate_frame

LIMIT = 32 * 1024
A, B = b"a" * 18, b"b" * 18
_SAMPLE = 50
_DRIBBLE = 800


class Reader:
    """Feeds a `FrameReader` with mutated and spliced streams of valid frames."""

    name = "reader"

    def make(self, seed: int) -> Case:
        """Return chunks of a stream."""
        rng = random.Random(seed)
        if seed % _DRIBBLE == 0:
            return {"chunks": _dribble(rng), "measure": True}
        corpus = [_frame(rng) for _ in range(12)]
        stream = b"".join(
            mutate_frame(rng, frame, corpus, LIMIT) if rng.random() < 0.1 else frame
            for frame in rng.choices(corpus, k=rng.randrange(1, 60))
        )
        if rng.random() < 0.2:
            stream = mutate_bytes(rng, stream, corpus)
        return {"chunks": cut(rng, stream), "measure": seed % _SAMPLE == 0}

    def run(self, case: Case) -> int:
        """Compare the reader with itself on another cut of the stream."""
        chunks: list[bytes] = case["chunks"]
        if case["measure"]:
            _measure(chunks)
        reader = FrameReader(LIMIT)
        frames: list[Frame] = []
        for chunk in chunks:
            frames += reader.feed(chunk)
            if len(chunks) < 100:
                require(held_bytes(reader) <= LIMIT + READ, f"{held_bytes(reader)} B are held")
            if reader.error is not None:
                break
        require(held_bytes(reader) <= LIMIT + READ, f"{held_bytes(reader)} B are held")
        stream = b"".join(chunks)
        whole = FrameReader(LIMIT)
        require(whole.feed(stream) == frames, "frames depend on how the stream is cut")
        require(type(whole.error) is type(reader.error), "errors depend on the cut")
        for frame in frames:
            require(frame[1] == len(frame[7]) <= LIMIT, "a payload has another length")
        read = b"".join(map(repack_frame, frames))
        require(stream.startswith(read), "frames are not the bytes that came")
        if reader.error is None:
            require(len(read) + held_bytes(reader) == len(stream), "bytes are missing")
            return len(frames)
        require(isinstance(reader.error, RemoteProtocolError), repr(reader.error))
        require(reader.feed(stream) == [], "a failed reader goes on")
        return len(frames) + 1


def _frame(rng: random.Random) -> bytes:
    payload = rng.randbytes(rng.choice((0, 0, 1, 7, 60, 61, 300)))
    if rng.random() < 0.02:
        payload = bytes(rng.choice((LIMIT, LIMIT - 1, LIMIT - 60)))
    actors = rng.getrandbits(32), rng.getrandbits(32)
    return pack_frame(
        rng.randrange(OPERATION_COUNT), rng.getrandbits(64), A, B, *actors, payload
    )


def _dribble(rng: random.Random) -> list[bytes]:
    """A large frame that arrives in pieces of a few bytes, each a separate object."""
    stream = pack_frame(2, 1, A, B, 16, 17, bytes(LIMIT))[: -rng.randrange(1, 99)]
    size = rng.randrange(2, 9)
    return [stream[at : at + size] for at in range(0, len(stream), size)]


def _measure(chunks: list[bytes]) -> None:
    """Check the memory that a reader really holds, including copies of its input."""
    reader = FrameReader(LIMIT)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for index, chunk in enumerate(chunks):
            reader.feed(b"".join((chunk[:1], chunk[1:])))
            if index % 64 == 0 or len(chunks) < 64:
                held = tracemalloc.get_traced_memory()[0] - before
                require(held <= LIMIT + READ, f"{held:,} B of memory for {LIMIT:,} B allowed")
        held = tracemalloc.get_traced_memory()[0] - before
        require(held <= LIMIT + READ, f"{held:,} B of memory for {LIMIT:,} B allowed")
    finally:
        tracemalloc.stop()
