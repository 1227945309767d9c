"""What is built and installed: one name, all modules, and nothing of a user's in the way."""

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

PROJECT = Path(__file__).parents[1]
ROOMS = ("actors", "basp", "proxies")

pytest.importorskip("hatchling", reason="builds a wheel")

#: Pythons before 3.11.4 have no filters.
SAFELY: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}


def run(*command, cwd, **environment):
    """Run a command to its end and return what it prints, all of it in the failure message."""
    done = subprocess.run(
        command,
        cwd=cwd,
        env=os.environ | environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, built from the source distribution as an installer does it."""
    folder = tmp_path_factory.mktemp("built")
    hatchling = (sys.executable, "-m", "hatchling", "build", "--directory", str(folder))
    run(*hatchling, "--target", "sdist", cwd=PROJECT)
    (sdist,) = folder.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, **SAFELY)
    run(*hatchling, "--target", "wheel", cwd=folder / sdist.name.removesuffix(".tar.gz"))
    (wheel,) = folder.glob("*.whl")
    return wheel


def test_the_same_sources_give_the_same_bytes(wheel, tmp_path):
    (sdist,) = wheel.parent.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, **SAFELY)
    source = tmp_path / sdist.name.removesuffix(".tar.gz")
    for path in source.rglob("*"):
        os.utime(path, (1_000_000_000, 1_000_000_000))
    command = (sys.executable, "-m", "hatchling", "build", "--target", "wheel")
    run(*command, "--directory", str(tmp_path / "again"), cwd=source)

    assert (tmp_path / "again" / wheel.name).read_bytes() == wheel.read_bytes()


def test_no_extra_is_for_developers_only(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        extras = re.findall(
            r"^Provides-Extra: (.*)$", archive.read(name).decode(), re.MULTILINE
        )

    assert extras
    assert not {"bench", "dev", "docs", "release"} & set(extras)


def test_the_licences_of_the_javascript_are_shipped_with_it(wheel):
    with zipfile.ZipFile(wheel) as archive:
        vendored = {
            name.rpartition("/")[2] for name in archive.namelist() if "/vendor/" in name
        }

    assert {"preact.js.gz", "LICENSES.txt.gz"} <= vendored


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """A folder with nothing but the wheel's files: installing a pure wheel is unpacking it."""
    folder = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def tracked_modules():
    """Return the files of the packages in git, under the names they are imported by."""
    rooms = "|".join(ROOMS)
    listed = run("git", "ls-files", *ROOMS, "callboard", cwd=PROJECT).split()
    links = {f"callboard/{room}" for room in ROOMS}
    assert links <= set(listed), f"git has no links callboard/({rooms})"
    return {
        f"callboard/{name}" if name.startswith(ROOMS) else name
        for name in listed
        if name not in links
    }


def test_the_wheel_made_from_the_sdist_has_all_modules_under_one_name(wheel):
    if not (PROJECT / ".git").exists():
        pytest.skip("no checkout: what git tracks is not known")

    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}

    assert names == tracked_modules()


def test_only_callboard_is_installed(installed):
    tops = {path.name for path in installed.iterdir() if not path.name.endswith(".dist-info")}

    assert tops == {"callboard"}


PROGRAM = """\
import sys, threading
import actors, basp, proxies
from callboard import Actor, Node, handler

class Echo(Actor):
    @handler
    def text(self, message: str) -> str:
        return message.upper()

with Node("host", spawnable={"echo": Echo}) as host, Node("guest") as guest:
    host.listen("127.0.0.1", 0)
    echo = guest.remote_spawn(host.address, "echo")
    print(echo.ask("hello").result(20), actors.MINE, basp.MINE, proxies.MINE)
"""


def test_a_program_beside_files_named_like_our_rooms_runs(installed, tmp_path):
    (tmp_path / "actors.py").write_text("MINE = 1\n")
    (tmp_path / "basp.py").write_text("MINE = 2\n")
    (tmp_path / "proxies").mkdir()
    (tmp_path / "proxies" / "__init__.py").write_text("MINE = 3\n")
    (tmp_path / "program.py").write_text(PROGRAM)
    needed = sysconfig.get_path("purelib"), sysconfig.get_path("platlib")

    # -S: the environment's own link to this checkout is not followed.
    said = run(
        sys.executable,
        "-S",
        "program.py",
        cwd=tmp_path,
        PYTHONPATH=os.pathsep.join((str(installed), *needed)),
    )

    assert said.split() == ["HELLO", "1", "2", "3"]


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_under_another_name_says_how_it_is_imported(room):
    program = f"try: import {room}\nexcept ImportError as error: print(error)"

    assert run(sys.executable, "-c", program, cwd=PROJECT).strip() == f"import callboard.{room}"


def test_no_link_of_the_description_is_broken_on_an_index(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        page = archive.read(name).decode()

    links = re.findall(r"\]\(([^)\s]+)\)", page)
    assert "callboard runs your Python classes as actors" in page
    assert all(link.startswith("https://") for link in links), links
    assert "tutorial (`docs/tutorial.md`)" in page


@pytest.fixture
def install_beside(wheel, tmp_path):
    """Ask pip what it would do with the wheel where a version of callboard is installed."""
    pytest.importorskip("pip")

    def ask(version):
        site = tmp_path / version
        metadata = site / f"callboard-{version}.dist-info" / "METADATA"
        metadata.parent.mkdir(parents=True)
        metadata.write_text(f"Metadata-Version: 2.4\nName: callboard\nVersion: {version}\n")
        # -S: the environment's own callboard is not seen.
        return run(
            *(sys.executable, "-S", "-m", "pip", "install", "--dry-run"),
            *("--no-deps", "--no-index", str(wheel)),
            cwd=tmp_path,
            PYTHONPATH=os.pathsep.join((str(site), sysconfig.get_path("purelib"))),
        )

    return ask


def test_pip_takes_the_wheel_for_an_upgrade_of_the_last_release(wheel, install_beside):
    version = wheel.name.split("-")[1]

    assert f"Would install callboard-{version}" in install_beside("0.1.0")
    assert "already installed" in install_beside(version)


def test_the_version_of_the_tree_is_above_the_last_release():
    from packaging.version import Version

    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]

    assert Version(project["version"]) > Version("0.1.0")
