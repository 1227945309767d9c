"""The release and build that a program announces."""

import subprocess
import tomllib
from pathlib import Path

import pytest

from callboard.support.platform.release import BUILD_SIZE, RELEASE, build_id

ROOT = Path(__file__).parents[4]


def test_the_release_is_the_version_of_the_project():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == RELEASE


def test_the_build_of_a_checkout_is_its_commit():
    done = subprocess.run(
        ["git", "-C", ROOT, "rev-parse", "HEAD"], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip("this is no checkout")
    assert build_id() == done.stdout[:BUILD_SIZE]
