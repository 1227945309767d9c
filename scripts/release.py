"""Build the files of a release, and install them as users do: `python -m scripts.release`.

Everything is made from the last commit, in `build/release`:

- the wheel and the source distribution, built twice in folders of different age: the bytes are
  equal;
- `twine check`, which stands before `twine upload`;
- a bill of materials (CycloneDX) of the locked packages and of the shipped JavaScript;
- for each Python from 3.11 that is installed here: an empty environment with the wheel, in
  which `pip check`, the command line, the demo, a new project with its tests, and the programs
  of the README run outside of any checkout;
- the upgrade of an environment that holds release 0.1.0.

Extras are installed by `python -m scripts.extras`. The finished files are in `dist`.
"""

import argparse
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path
from typing import Any, Final

from scripts.installing import ROOT, Environment, find_uv, run, write_constraints
from scripts.vendor import PACKAGES

BUILD: Final = ROOT / "build" / "release"
DIST: Final = ROOT / "dist"

RUNNER: Final = ROOT / "scripts" / "extras" / "run_page.py"

#: A commit of release 0.1.0.
RELEASED: Final = "a95cf891"

#: The Pythons that a release supports, as `requires-python` and the classifiers say.
VERSIONS: Final = ("3.11", "3.12", "3.13", "3.14")


def tools() -> Path:
    """Return the folder of the commands that build and check, installed from their lock."""
    folder = BUILD / "tools"
    lock = ROOT / "requirements" / "release.txt"
    ready = folder / ".ready"
    if not ready.exists() or ready.stat().st_mtime < lock.stat().st_mtime:
        shutil.rmtree(folder, ignore_errors=True)
        uv = [find_uv(), "--no-config"]
        run(*uv, "venv", "--quiet", "--python", sys.executable, str(folder))
        python = str(folder / "bin" / "python")
        locked = ["--require-hashes", "-r", str(lock)]
        run(*uv, "pip", "install", "--quiet", "--python", python, *locked)
        ready.touch()
    return folder / "bin"


def export(commit: str, folder: Path) -> Path:
    """Write the files of a commit to a folder, and return the folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    archive = subprocess.run(
        ["git", "archive", commit], cwd=ROOT, check=True, capture_output=True
    ).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(folder, filter="data")
    return folder


def build(commit: str, name: str, *, modified: float | None = None) -> list[Path]:
    """Build the source distribution of a commit, and the wheel from it.

    Args:
        commit: the commit.
        name: name of the folder in `BUILD`.
        modified: time of the last modification of all files, in seconds since 1970.
    """
    source = export(commit, BUILD / name / "source")
    if modified is not None:
        for path in source.rglob("*"):
            os.utime(path, (modified, modified), follow_symlinks=False)
    target = BUILD / name / "dist"
    shutil.rmtree(target, ignore_errors=True)
    python = str(tools() / "python")
    run(python, "-m", "build", "--no-isolation", "--outdir", str(target), str(source))
    return sorted(target.iterdir())


def digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def build_twice(commit: str) -> list[Path]:
    """Build a commit twice, and return the files.

    Raises:
        SystemExit: the two builds differ.
    """
    first = build(commit, "first")
    second = build(commit, "second", modified=1_000_000_000)
    for one, other in zip(first, second, strict=True):
        if (one.name, digest(one)) != (other.name, digest(other)):
            sys.exit(f"{one.name} differs between two builds: compare {one} and {other}")
        print(f"{one.name}: {one.stat().st_size:,} bytes, sha256 {digest(one)}, twice the same")
    return first


def bill_of_materials(target: Path) -> None:
    """Write the packages of `requirements/run.txt` and the shipped JavaScript as CycloneDX."""
    command = [str(tools() / "cyclonedx-py"), "requirements", "requirements/run.txt"]
    options = ["--pyproject", "pyproject.toml", "--output-reproducible", "--of", "JSON"]
    run(*command, *options, "--output-file", str(target))
    document: dict[str, Any] = json.loads(target.read_text())
    document.setdefault("components", []).extend(
        {
            "type": "library",
            "bom-ref": f"pkg:npm/{package.name}@{package.version}",
            "name": package.name,
            "version": package.version,
            "purl": f"pkg:npm/{package.name}@{package.version}",
            "description": "shipped in callboard/dashboard/files/vendor",
        }
        for package in PACKAGES
    )
    target.write_text(json.dumps(document, indent=2) + "\n")
    print(f"{target.name}: {len(document['components'])} components")


def find_python(version: str) -> str | None:
    """Return an interpreter of a version, on the path or of pyenv; None if there is none."""
    folder = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates = [f"python{version}", *map(str, folder.glob(f"{version}.*/bin/python"))]
    for candidate in candidates:
        try:
            found = run(candidate, "-c", "import sys; print('%d.%d' % sys.version_info[:2])")
        except (OSError, subprocess.CalledProcessError):
            continue
        if found.strip() == version:
            return candidate
    return None


def use(wheel: Path, version: str, python: str, constraints: Path) -> str:
    """Install the wheel in an empty environment and use it; return one line about it.

    Raises:
        CalledProcessError: a command failed.
    """
    folder = BUILD / f"python{version}"
    start = time.monotonic()
    environment = Environment(folder / "environment", python, constraints)
    environment.install(str(wheel))
    environment.check()
    ready = time.monotonic()
    work = folder / "work"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    command = str(environment.folder / "bin" / "callboard")
    run(command, "--version", cwd=work)
    run(command, "doctor", cwd=work)
    summary = json.loads(run(command, "demo", "--seconds", "6", "--json", cwd=work))
    (work / "program.py").write_text("import callboard\n")
    pages = [str(work / "program.py"), str(ROOT / "README.md")]
    readme = run(environment.python, "-I", str(RUNNER), *pages, cwd=work, limit=120)
    tried = time.monotonic()
    run(command, "new", "myapp", cwd=work)
    environment.install("pytest")
    tests = run(environment.python, "-m", "pytest", "-q", cwd=work / "myapp")
    passed = re.findall(r"\d+ passed", tests)
    return (
        f"Python {version}: {ready - start:.1f} s to install; the demo delivered "
        f"{summary['delivered']:,} of {summary['sent']:,} messages; "
        f"{readme.splitlines()[-1]}; a new project after {time.monotonic() - tried:.1f} s: "
        f"{', '.join(passed)}"
    )


def upgrade(wheel: Path, constraints: Path) -> str:
    """Install the wheel with pip over release 0.1.0; return one line about it.

    Raises:
        SystemExit: pip left the old release in place.
        CalledProcessError: a command failed.
    """
    git = ["git", "cat-file", "-e", f"{RELEASED}^{{tree}}"]
    if subprocess.run(git, cwd=ROOT, check=False, capture_output=True).returncode:
        return f"this clone does not have {RELEASED}: the upgrade of 0.1.0 was not tried"
    old = build(RELEASED, "released")
    (old_wheel,) = (path for path in old if path.suffix == ".whl")
    environment = Environment(BUILD / "upgraded", sys.executable, constraints)
    environment.install("pip", str(old_wheel))
    before = version_of(environment)
    pip = [environment.python, "-m", "pip", "install", "--quiet", "-c", str(constraints)]
    run(*pip, str(wheel))
    after = version_of(environment)
    if before == after:
        sys.exit(f"pip install {wheel.name} left callboard {before} in place")
    return f"pip install over callboard {before}: callboard {after}"


def version_of(environment: Environment) -> str:
    """Return the version of callboard that an environment holds."""
    program = "from importlib.metadata import version; print(version('callboard'))"
    return run(environment.python, "-I", "-c", program, cwd=BUILD).strip()


def javascript_is_licensed(wheel: Path) -> bool:
    """Return whether the wheel has the licences of the JavaScript that it has."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    return any(name.endswith("vendor/LICENSES.txt.gz") for name in names)


def audit() -> int:
    """Look up known vulnerabilities of all locked packages; return 1 if one is known.

    A package that pypi.org has no answer for counts as a failure, too.
    """
    command = [str(tools() / "pip-audit"), "--strict", "--disable-pip", "--no-deps"]
    locks = [f"requirements/{name}.txt" for name in ("run", "dev", "docs", "spark", "release")]
    files = [argument for lock in locks for argument in ("-r", lock)]
    return subprocess.run([*command, *files], cwd=ROOT, check=False).returncode


def main() -> int:
    """Make and check a release; return 1 if a check failed."""
    parser = argparse.ArgumentParser(prog="python -m scripts.release", description=__doc__)
    parser.add_argument("--commit", default="HEAD", help="what is released")
    parser.add_argument("--python", nargs="*", default=VERSIONS, help="the versions to try")
    parser.add_argument("--audit", action="store_true", help="only look up vulnerabilities")
    options = parser.parse_args()

    BUILD.mkdir(parents=True, exist_ok=True)
    if options.audit:
        return audit()
    try:
        files = build_twice(options.commit)
        (wheel,) = (path for path in files if path.suffix == ".whl")
        run(str(tools() / "twine"), "check", "--strict", *map(str, files))
        print("twine check: passed")
        if not javascript_is_licensed(wheel):
            sys.exit("the wheel lacks the licences of the shipped JavaScript")
        bill = BUILD / f"{wheel.name.split('-py3')[0]}.cdx.json"
        bill_of_materials(bill)
        constraints = write_constraints(BUILD / "constraints.txt")
        for version in options.python:
            python = find_python(version)
            if python is None:
                print(f"Python {version}: not installed here, not tried")
            else:
                print(use(wheel, version, python, constraints), flush=True)
        print(upgrade(wheel, constraints))
    except subprocess.CalledProcessError as error:
        print(f"FAILED: {' '.join(map(str, error.cmd))}\n{error.output}")
        return 1
    DIST.mkdir(exist_ok=True)
    for path in [*files, bill]:
        shutil.copy2(path, DIST)
    print(f"the files are in {DIST}; next: twine upload dist/callboard-*")
    return 0


if __name__ == "__main__":
    sys.exit(main())
