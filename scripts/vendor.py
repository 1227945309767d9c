"""Copy what the pages of the dashboard use of others: `python -m scripts.vendor`.

Each package is fetched by npm at a locked version, its archive compared with the hash that
stands here, and the files that are used are copied, compressed as browsers take them, with all
licences in one file. Nothing is built. htm brings preact in its file.
"""

import base64
import gzip
import hashlib
import subprocess
import sys
import tarfile
from collections import defaultdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

VENDOR = Path(__file__).parents[1] / "callboard" / "dashboard" / "files" / "vendor"

#: Bytes of all files of the pages, ours included, compressed as a browser gets them.
LIMIT = 75_000


class Package(NamedTuple):
    """A package of npm: the hash of its archive, and the copied files with their new names.

    Files with the same name are concatenated.
    """

    name: str
    version: str
    sha512: str
    files: dict[str, str]


PACKAGES = (
    Package(
        "htm",
        "3.1.1",
        "983Vyg8NwUE7JkZ6NmOqpCZ+sh1bKv2iYTlUkzlWmA5JD2acKoxd4KVxbMmx"
        "X/85mtfdnDmTFoNKcg5DGAvxNQ==",
        {"preact/standalone.module.js": "preact.js"},
    ),
    Package(
        "uplot",
        "1.6.32",
        "KIMVnG68zvu5XXUbC4LQEPnhwOxBuLyW1AHtpm6IKTXImkbLgkMy+jabjLgS"
        "LMasNuGGzQm/ep3tOkyTxpiQIw==",
        {"dist/uPlot.iife.min.js": "uPlot.js", "dist/uPlot.min.css": "uPlot.css"},
    ),
    Package(
        "d3-dispatch",
        "3.0.2",
        "sAzH4Y4nsLo8eSqw5jKiZt+LU2wZmL/qS+OkxQGjhwazB/D7TY34R/QK1esh"
        "fGr7cZEKymKZ/Haem7m+lu98Sg==",
        {"dist/d3-dispatch.min.js": "d3-force.js"},
    ),
    Package(
        "d3-quadtree",
        "3.0.2",
        "9Lu9mqJKRbIk0d6mKDjpvPURaPdwHVK5CYbcdd0/4vBgz4ldz/7TIOse3kNE"
        "RsByGNfld58KEco507AztJWyTQ==",
        {"dist/d3-quadtree.min.js": "d3-force.js"},
    ),
    Package(
        "d3-timer",
        "3.0.2",
        "1Il1aliroVSErrv5aulRBxAY+7+DnaoLIWGd1C6SsBTWDeobWiP/V69vwb8v"
        "T6abR1kKwaNe1196pmaQ1fK90A==",
        {"dist/d3-timer.min.js": "d3-force.js"},
    ),
    Package(
        "d3-force",
        "3.0.1",
        "kAaaHLFebBYwgi5cYBXAI8vKrQFMCD2MEswj2QuPKKbdU1wYLc8WXtS7O8F/"
        "b6POCIe3gJjY6hkDstHi1yMETQ==",
        {"dist/d3-force.min.js": "d3-force.js"},
    ),
    Package(
        "preact",
        "11.2.0",
        "/HfHI/7N84e6GrWBJ3J280z3mLaRJiDcSvj/A+y/4AbLnND/1UlGHe1sR6oY"
        "uTGwId0nP7dqDU9OnLxMPZ7xBg==",
        {},
    ),
)


def main() -> int:
    """Fetch, check and copy; returns the exit code."""
    licences, copied = [], defaultdict[str, bytes](bytes)
    VENDOR.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as place:
        for package in PACKAGES:
            archive = fetch(package, Path(place))
            with tarfile.open(archive) as files:
                for source, target in package.files.items():
                    copied[target] += read(files, source)
                text = read(files, "LICENSE").decode()
            licences.append(f"{package.name} {package.version}\n\n{text.strip()}\n")
    copied["LICENSES.txt"] = f"\n{'-' * 72}\n\n".join(licences).encode()
    for name, content in copied.items():
        (VENDOR / f"{name}.gz").write_bytes(gzip.compress(content, mtime=0))
    files = [file for file in VENDOR.parent.rglob("*") if file.is_file()]
    contents = {file: file.read_bytes() for file in files}
    size = sum(
        len(content if file.suffix == ".gz" else gzip.compress(content))
        for file, content in contents.items()
    )
    print(f"{size:,} bytes in {VENDOR.parent}, at most {LIMIT:,}")
    return size > LIMIT


def fetch(package: Package, place: Path) -> Path:
    """Return the archive of a package.

    Raises:
        SystemExit: it is not the one that is locked.
    """
    wanted = f"{package.name}@{package.version}"
    command = ["npm", "pack", wanted, "--silent"]
    subprocess.run(command, cwd=place, check=True, stdout=subprocess.DEVNULL)
    archive = place / f"{package.name}-{package.version}.tgz"
    digest = base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
    if digest != package.sha512:
        sys.exit(f"{wanted} has the hash sha512-{digest}, and not the one in {__file__}")
    return archive


def read(archive: tarfile.TarFile, name: str) -> bytes:
    """Return a file of a package."""
    found = archive.extractfile(f"package/{name}")
    assert found is not None
    return found.read()


if __name__ == "__main__":
    sys.exit(main())
