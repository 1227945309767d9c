"""A disk of 1 MiB of the machine itself, full and then mounted read-only, under each writer.

It is a tmpfs in a mount namespace of a child process; skipped where that may not be had.
"""

import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.callboard.test_full_disk import WRITERS

SIZE = 1 << 20


def mount(folder, options):
    subprocess.run(["mount", *options.split(), "none", str(folder)], check=True, timeout=120)


def check(folder, writer_class):
    """Fill the disk, make room, let it be read-only, and then be as before."""
    place = folder / writer_class.__name__
    place.mkdir()
    ballast = folder / "ballast"
    writer, acknowledged, refused = writer_class(place), [], 0
    ballast.write_bytes(bytes(SIZE - 300_000))
    for number in range(1000):
        try:
            writer.write(number)
            acknowledged.append(number)
        except writer_class.error:
            refused += 1
        if refused > 5:
            break
    assert (refused > 5, bool(acknowledged)) == (True, True)
    ballast.unlink()
    with suppress(writer_class.error):  # a store's master ended, and could not begin again
        writer.close()
    writer = writer_class(place)
    for number in range(2000, 2020):
        writer.write(number)
        acknowledged.append(number)
    writer.close()

    mount(folder, "-o remount,ro")
    try:
        for _ in range(3):
            with pytest.raises(writer_class.error):  # noqa: PT012  (when it opens or writes)
                writer = writer_class(place)
                writer.write(3000)
            with suppress(writer_class.error):
                writer.close()
        left = writer.read() if not hasattr(writer, "backend") else acknowledged
    finally:
        mount(folder, "-o remount,rw")
    assert left == acknowledged
    writer = writer_class(place)
    writer.write(4000)
    writer.close()
    assert writer.read() == [*acknowledged, 4000]


def main():
    """Check all writers on a disk of their own each."""
    folder = Path(sys.argv[1])
    for each in WRITERS:
        mount(folder, f"-t tmpfs -o size={SIZE}")
        check(folder, each)
        print(each.__name__, flush=True)


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_what_was_acknowledged_stays_on_a_disk_that_is_full_and_then_read_only(tmp_path):
    probe = ["unshare", "-m", "mount", "-t", "tmpfs", "none", str(tmp_path)]
    try:
        subprocess.run(probe, check=True, capture_output=True, timeout=120)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no mount namespace is to be had")
    command = ["unshare", "-m", sys.executable, "-m", __name__, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110)

    assert done.stdout.split() == [each.__name__ for each in WRITERS], done.stderr[-3000:]


if __name__ == "__main__":
    main()
