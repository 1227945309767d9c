"""A log's sealed segments on S3 as Arrow's record batches, from begin to end, all columns.

The S3 is moto, in a separate process on this machine: the measure shows our cost of reading,
not that of a network. The log is that of `log_table`, a million records of 100 random bytes,
but without repeated payloads: these shrink Parquet's pages to a ninth, and the two subjects
would not fetch the same number of bytes. The peer is pyarrow's dataset of the Parquet files of
the same records on the same server, one for each segment, all columns.
"""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from benchmarks.log_append import RUN, check
from benchmarks.log_table import RECORDS, written
from benchmarks.measure import Measure, PeerMissingError, Subject
from callboard.commitlog import LogReader, sealed_segments, write_columns
from callboard.commitlog.objects.archive import Copier
from callboard.commitlog.objects.store import FileSystemObjects, object_address
from callboard.commitlog.reader import open_folder

PLACE = "s3://logs/cpu"
SERVER = """
import logging, sys
logging.disable()
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""


@contextmanager
def store() -> Iterator[dict[str, str]]:
    """Yield what gets to an S3 that has one bucket."""
    import fsspec

    command = [sys.executable, "-c", SERVER]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        port = int(process.stdout.readline())
        options = {"key": "k", "secret": "s", "endpoint_url": f"http://127.0.0.1:{port}"}
        fsspec.filesystem("s3", **options).mkdir("logs")
        try:
            yield options
        finally:
            process.stdin.close()


def prepare() -> None:
    """Check that the S3 and pyarrow are installed."""
    for name in ("pyarrow", "s3fs", "moto"):
        if find_spec(name) is None:
            message = f"{name} is not installed; make setup brings it"
            raise PeerMissingError(message)


def ours(share: float = 1.0) -> float:
    """Return records for each second."""
    import pyarrow.compute  # noqa: F401  (every user of tables has it)

    records = int(RECORDS * share) // RUN * RUN
    with store() as options, written(records, records) as folder:
        objects = FileSystemObjects(object_address(PLACE, options))
        for _ in Copier(open_folder(folder), objects).copy():
            pass
        started = time.perf_counter()
        batches = LogReader(PLACE, storage_options=options).arrow_batches(0, records)
        rows = sum(batch.num_rows for batch in batches)
        taken = time.perf_counter() - started
    check(rows, records)
    return records / taken


def parquet(share: float = 1.0) -> float:
    """Return records for each second."""
    from pyarrow import dataset, fs

    records = int(RECORDS * share) // RUN * RUN
    with store() as options, written(records, records) as folder:
        files = fs.S3FileSystem(
            access_key=options["key"],
            secret_key=options["secret"],
            endpoint_override=options["endpoint_url"],
        )
        write_columns(folder)
        for each in sealed_segments(folder):
            path = Path(str(each.columns))
            with files.open_output_stream(f"logs/columns/{path.name}") as out:
                out.write(path.read_bytes())
        started = time.perf_counter()
        table = dataset.dataset("logs/columns", filesystem=files)
        rows = sum(batch.num_rows for batch in table.to_batches())
        taken = time.perf_counter() - started
    check(rows, records)
    return records / taken


MEASURE = Measure(
    title="sealed segments on S3 as Arrow's record batches",
    unit="records/s",
    subjects=(
        Subject("callboard, archive", ours, prepare),
        Subject(
            "pyarrow, Parquet dataset of the same",
            parquet,
            prepare,
            against="callboard, archive",
        ),
    ),
)
