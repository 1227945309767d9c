"""Today's code writes the stored bytes, and reads them as what they were."""

import pytest

from tests.golden.kinds import KINDS, folders_of, made, name_of, samples_of
from tests.golden.sample import read_files, write_folder

NAMES = [name_of(kind) for kind in KINDS]


@pytest.mark.parametrize("kind", KINDS, ids=NAMES)
def test_todays_code_writes_the_same_bytes(kind, tmp_path):
    foreign = tuple(e for folder in folders_of(kind).values() for e in folder.foreign)
    stored, written = read_files(name_of(kind)), dict(made(kind, tmp_path))

    # Drawn at random for each log; the first release did not write them.
    foreign += ("/identity", "/epochs", "/runs")

    def ours(files):
        return {name: data.hex() for name, data in files.items() if not name.endswith(foreign)}

    assert list(ours(written)) == list(ours(stored))
    assert ours(written) == ours(stored)


@pytest.mark.parametrize("kind", KINDS, ids=NAMES)
def test_todays_code_reads_the_stored_bytes(kind):
    stored = read_files(name_of(kind))

    for name, sample in samples_of(kind).items():
        assert sample.read(stored[name]) == sample.expected, name


FOLDERS = [(kind, name) for kind in KINDS for name in folders_of(kind)]


@pytest.mark.parametrize(("kind", "name"), FOLDERS, ids=[name for _, name in FOLDERS])
def test_stored_folders_are_read_and_go_on(kind, name, tmp_path):
    prefix, folder = f"{name}/", folders_of(kind)[name]
    files = read_files(name_of(kind)).items()
    stored = {path.removeprefix(prefix): d for path, d in files if path.startswith(prefix)}
    write_folder(tmp_path, stored)

    assert folder.look(tmp_path) == folder.expected
    more = folder.go_on(tmp_path)
    assert folder.look(tmp_path) == more != folder.expected


@pytest.mark.parametrize("kind", KINDS, ids=NAMES)
def test_no_kind_of_record_is_missing(kind):
    assert kind.missing() == set()
