"""What a server of logs offers, whatever the transport."""

import pytest

from callboard.commitlog import CommitLog
from callboard.commitlog.folder import LAST_OFFSET
from callboard.commitlog.reader import open_folder
from callboard.commitlog.remote.served import ServedFolders, is_log_file, is_position


@pytest.fixture
def served(tmp_path):
    with CommitLog(tmp_path / "cpu") as log:
        log.append("/cpu", 0.5)
    (tmp_path / "cpu" / "notes.txt").write_text("not of the log")
    names = ("cpu", "gpu")  # the second one has no folder yet
    return ServedFolders({name: open_folder(tmp_path / name) for name in names})


def test_a_reader_sees_the_logs_that_it_may_read(served):
    assert served.names(lambda _: True) == ["cpu", "gpu"]
    assert served.names(lambda name: name == "gpu") == ["gpu"]
    assert ("cpu" in served, "disk" in served) == (True, False)


def test_only_files_of_a_log_are_listed_and_read(served):
    files = served.files("cpu")

    assert "00000000000000000000.log" in files
    assert "notes.txt" not in files
    size = served.size("cpu", "00000000000000000000.log")
    with served.opened("cpu", "00000000000000000000.log") as file:
        assert len(file.pread(size + 1, 0)) == size > 0


def test_a_log_without_a_folder_is_an_error_of_the_disk(served):
    with pytest.raises(FileNotFoundError):
        served.files("gpu")
    with pytest.raises(FileNotFoundError):
        served.size("gpu", "synced")


@pytest.mark.parametrize(
    "name", ["../cpu/synced", "/etc/passwd", "notes.txt", "", b"synced", None, "synced\n", 1]
)
def test_other_names_are_no_files_of_a_log(name):
    assert not is_log_file(name)


@pytest.mark.parametrize("name", ["00000000000000000000.log", "synced", "fields"])
def test_these_are_files_of_a_log(name):
    assert is_log_file(name)


@pytest.mark.parametrize(
    ("number", "is_one"),
    [(0, True), (LAST_OFFSET, True), (-1, False), (LAST_OFFSET + 1, False), (True, False)],
)
def test_positions_are_checked(number, is_one):
    assert is_position(number) is is_one
    assert not is_position(str(number))
