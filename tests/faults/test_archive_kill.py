"""A writer that archives its log is killed at any moment: all is there once."""

import subprocess
import sys
import time

import pytest

from callboard.commitlog import CommitLog, LogReader
from callboard.commitlog.objects.archive import Copier
from callboard.commitlog.objects.store import FileSystemObjects, object_address
from callboard.commitlog.reader import open_folder
from callboard.commitlog.verify import verify
from tests.polling import eventually

pytest.importorskip("fsspec")
pytestmark = pytest.mark.faults

PROGRAM = """
import sys
from callboard.commitlog import CommitLog
with CommitLog(sys.argv[1], segment_bytes=50_000, archive=sys.argv[2]) as log:
    while True:
        log.append_batch([{"n": n} for n in range(log.end, log.end + 50)], topic="/n")
        log.flush()
"""


def test_an_archive_survives_the_deaths_of_its_copiers(tmp_path):
    folder, place = tmp_path / "cpu", f"file://{tmp_path}/copies"
    manifests = tmp_path / "copies" / "manifests"
    for life in range(6):
        with subprocess.Popen([sys.executable, "-c", PROGRAM, str(folder), place]) as process:
            try:
                eventually(lambda: manifests.is_dir() and any(manifests.glob("*.json")))
                newest = max(manifests.glob("*.json"))
                eventually(lambda n=newest: max(manifests.glob("*.json")) > n)
                time.sleep(0.013 * life)
            finally:
                process.kill()
        assert verify(place).damage == []
    with CommitLog(folder, segment_bytes=1) as log:
        log.append("/end", {"n": log.end})
        end = log.end
    for _ in Copier(open_folder(folder), FileSystemObjects(object_address(place))).copy():
        pass
    there = LogReader(place)
    assert there.end >= end - 1
    assert [each.payload["n"] for each in there] == list(range(there.end))
    assert verify(place).records == there.end
