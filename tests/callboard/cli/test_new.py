import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import callboard
from callboard.cli import main

pytestmark = pytest.mark.slow


def make(folder, *targets):
    plain = {key: value for key, value in os.environ.items() if not key.startswith("MAKE")}
    plain.pop("PYTHONPATH", None)
    return subprocess.run(
        ["make", *targets], cwd=folder, capture_output=True, text=True, env=plain, timeout=120
    )


def test_the_tests_of_a_project_pass(tmp_path, capsys):
    folder = tmp_path / "my-app"
    assert main(["new", str(folder)]) == 0
    assert capsys.readouterr().out.endswith(f"next: cd {folder} && make test\n")
    assert main(["node", "check", str(folder / "node.toml")]) == 0

    done = make(folder, "test")

    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout
    assert make(folder, "clean").returncode == 0
    assert not (folder / ".venv").exists()


def test_committed_files_of_a_new_project_contain_no_local_path(tmp_path, capsys):
    folder = tmp_path / "kept"
    assert main(["new", str(folder)]) == 0

    ignored = (folder / ".gitignore").read_text().splitlines()
    assert "local.mk" in ignored
    for path in folder.rglob("*"):
        if path.is_file() and path.name not in ignored:
            text = path.read_text()
            assert not {sys.prefix, str(Path(callboard.__file__).parents[1])} & {
                word.strip("\"'") for word in re.split(r"[\s=:]", text)
            }
            assert sys.executable not in text
    project = tomllib.loads((folder / "pyproject.toml").read_text())
    assert project["build-system"]["build-backend"] == "hatchling.build"
    assert project["tool"]["hatch"]["build"]["targets"]["wheel"]["only-include"] == ["kept.py"]


def test_the_files_are_listed_as_json(tmp_path, capsys):
    folder = tmp_path / "till"

    assert main(["new", str(folder), "--json"]) == 0

    told = json.loads(capsys.readouterr().out)
    there = {str(path) for path in folder.rglob("*") if path.is_file()}
    assert told["folder"] == str(folder)
    assert set(told["files"]) == there
    assert str(folder / "till.py") in there


@pytest.mark.parametrize("name", ["My App", "1st", "class", "json", "callboard", "a_", "tests"])
def test_names_that_no_module_can_have_are_refused(tmp_path, capsys, name):
    assert main(["new", str(tmp_path / name)]) == 2

    assert capsys.readouterr().err.endswith("the name of another module\n")
    assert not (tmp_path / name).exists()


def test_an_existing_folder_is_not_changed(tmp_path, capsys):
    (tmp_path / "app").mkdir()
    assert main(["new", str(tmp_path / "app"), "--json"]) == 0
    capsys.readouterr()

    assert main(["new", str(tmp_path / "app")]) == 2
    assert capsys.readouterr().err.endswith("exists already; choose another name\n")
