"""A new checkout: each process of the suite rewrites a part of the test files."""

import os
import sys
from types import SimpleNamespace

import pytest
from _pytest.assertion import rewrite

from tests.rewriting import keep_rewritten, rewrite_share, share_of


@pytest.fixture(autouse=True)
def _writes(monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)


@pytest.fixture
def files(tmp_path):
    made = [tmp_path / f"test_{number}.py" for number in range(7)]
    for number, file in enumerate(made):
        file.write_text("def test_one():\n    assert 1 == 1\n" * (number + 1))
    return made


def kept_of(file):
    return rewrite._read_pyc(
        file, rewrite.get_cache_dir(file) / f"{file.stem}{rewrite.PYC_TAIL}"
    )


def worker(pytestconfig, number, count):
    """The configuration as a process of xdist has it."""
    workerinput = {"workerid": f"gw{number}", "workercount": count}
    names = ("stash", "getini", "getoption", "hook", "pluginmanager")
    parts = {name: getattr(pytestconfig, name) for name in names}
    return SimpleNamespace(workerinput=workerinput, **parts)


def test_each_file_is_in_one_share_and_the_largest_are_in_different_ones(files):
    shares = [share_of(files, number, 3) for number in range(3)]

    assert sorted(sum(shares, [])) == files
    assert [share[0] for share in shares] == files[:-4:-1]


def test_processes_together_rewrite_all_files_once(files, pytestconfig):
    counts = [rewrite_share(worker(pytestconfig, number, 3), files) for number in range(3)]

    assert counts == [3, 2, 2]
    assert all(kept_of(file) is not None for file in files)
    assert rewrite_share(worker(pytestconfig, 0, 1), files) == 0


def test_the_import_hook_of_pytest_takes_what_was_kept(files, pytestconfig):
    keep_rewritten(files[0], pytestconfig)

    assert "@pytest_ar" in kept_of(files[0]).co_names  # as only rewritten modules import it


def test_a_changed_file_is_rewritten_again(files, pytestconfig):
    assert keep_rewritten(files[0], pytestconfig)
    files[0].write_text("assert 2 == 2\n")
    os.utime(files[0], (1, 1))

    assert keep_rewritten(files[0], pytestconfig)
    assert not keep_rewritten(files[0], pytestconfig)


def test_a_file_that_is_no_python_is_left_to_the_collection(files, pytestconfig):
    files[0].write_text("def (")

    assert not keep_rewritten(files[0], pytestconfig)


def test_one_process_alone_rewrites_while_it_collects(files, pytestconfig):
    alone = worker(pytestconfig, 0, 1)
    del alone.workerinput

    assert rewrite_share(alone, files) == 0
